{{/* What all pods share. */}}

{{/* The user of both images; its group owns what is mounted. */}}
{{- define "fusec.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- /* Else every mount of a volume lets the group write to all that is in it, and the store, whose
content is executed, refuses a directory that others may write to. */}}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "fusec.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "fusec.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Where pods of a group go: call with the group's values. */}}
{{- define "fusec.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Spread over hosts and zones: call with (list $ "cache" .Values.cache.topologySpread). */}}
{{- define "fusec.spread" -}}
{{- $top := index . 0 -}}
{{- $part := index . 1 -}}
{{- $spread := index . 2 -}}
{{- with $spread.keys }}
topologySpreadConstraints:
{{- range . }}
  - maxSkew: 1
    topologyKey: {{ . | quote }}
    whenUnsatisfiable: {{ $spread.whenUnsatisfiable }}
    matchLabelKeys: [pod-template-hash]  # in an upgrade the new pods are spread, whatever the old are
    labelSelector:
      matchLabels:
        {{- include "fusec.selector" (list $top $part) | nindent 8 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Settings by name as variables: call with (list "FUSEC_CACHE_" .Values.cache.settings). YAML's
numbers are floats here: whole ones are written without an exponent. */}}
{{- define "fusec.settings" -}}
{{- $prefix := index . 0 -}}
{{- range $name, $value := index . 1 }}
- name: {{ $prefix }}{{ upper $name }}
{{- if and (kindIs "float64" $value) (eq $value (floor $value)) }}
  value: {{ $value | int64 | quote }}
{{- else }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The store, for the service and the collector. */}}
{{- define "fusec.storeEnv" -}}
{{- $store := .Values.store -}}
- name: FUSEC_CACHE_STORE
{{- if eq $store.type "s3" }}
  value: {{ printf "s3://%s/%s" (required "fusec: store.s3.bucket is not set" $store.s3.bucket) $store.s3.prefix | trimSuffix "/" | quote }}
{{- with $store.s3.endpoint }}
- name: FUSEC_CACHE_S3_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with $store.s3.region }}
- name: FUSEC_CACHE_S3_REGION
  value: {{ . | quote }}
{{- end }}
{{- if eq $store.s3.credentials "static" }}
- name: AWS_ACCESS_KEY_ID
  valueFrom:
    secretKeyRef:
      name: {{ include "fusec.s3Secret" . | quote }}
      key: access-key-id
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef:
      name: {{ include "fusec.s3Secret" . | quote }}
      key: secret-access-key
{{- end }}
{{- else if eq $store.type "file" }}
  value: file:///var/lib/fusec
{{- else }}
  value: "memory:"
{{- end }}
{{- if and .Values.collector.enabled (ne $store.type "memory") }}
- name: FUSEC_CACHE_GC_MAX_AGE_S
  value: {{ .Values.collector.maxAgeSeconds | int64 | quote }}
- name: FUSEC_CACHE_GC_MAX_BYTES
  value: {{ .Values.collector.maxBytes | int64 | quote }}
- name: FUSEC_CACHE_GC_GRACE_S
  value: {{ .Values.collector.graceSeconds | int64 | quote }}
{{- end }}
{{- end -}}

{{/* One key of the Secret of tokens as a variable: (list $ "FUSEC_CACHE_TOKENS" "grants"). */}}
{{- define "fusec.tokenEnv" -}}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ include "fusec.tokensSecret" (index . 0) | quote }}
      key: {{ index . 2 }}
{{- end -}}

{{/* Spans: call with (list $ "FUSEC_CACHE_TRACING"). */}}
{{- define "fusec.tracingEnv" -}}
{{- with (index . 0).Values.tracing.otlpEndpoint -}}
- name: {{ index $ 1 }}
  value: otlp
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The port of an address: 443 or 80 where it says none. */}}
{{- define "fusec.port" -}}
{{- regexFind ":[0-9]+$" . | trimPrefix ":" | default (ternary "443" "80" (hasPrefix "https:" .)) -}}
{{- end -}}
