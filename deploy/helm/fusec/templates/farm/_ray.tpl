{{/* What Ray's pods share. KubeRay adds the command, the probes, /dev/shm and /tmp/ray. */}}
{{- define "fusec.rayPod" -}}
enableServiceLinks: false
securityContext:
  {{- include "fusec.podSecurity" . | nindent 2 }}
{{- include "fusec.pullSecrets" . }}
{{- end -}}

{{/* KubeRay's Services choose pods by app.kubernetes.io/name, which stays its own. */}}
{{- define "fusec.rayLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: ray
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "fusec.rayEnv" -}}
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
{{- end -}}

{{/* The head notices a lost node in five seconds: farm.ray_settings, whose environment this is. */}}
{{- define "fusec.rayHeadEnv" -}}
- name: RAY_health_check_initial_delay_ms
  value: "3000"
- name: RAY_health_check_period_ms
  value: "1000"
- name: RAY_health_check_timeout_ms
  value: "2000"
- name: RAY_health_check_failure_threshold
  value: "3"
{{- end -}}

{{/* The token of Ray's ports, for pods that KubeRay does not give it to. */}}
{{- define "fusec.rayAuthEnv" -}}
{{- if .Values.farm.ray.tokenAuthentication -}}
- name: RAY_AUTH_MODE
  value: token
- name: RAY_AUTH_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ include "fusec.fullname" . }}-ray-auth
      key: auth_token
{{- end -}}
{{- end -}}

{{- define "fusec.rayAddress" -}}
{{- printf "%s-ray-head-svc.%s.svc:6379" (include "fusec.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* A group of workers: call with (list $ "cpu" .Values.farm.cpuGroup) or a GPU group. */}}
{{- define "fusec.workerGroup" -}}
{{- $top := index . 0 -}}
{{- $group := index . 2 -}}
{{- $gpus := ternary (int (default 1 $group.gpus)) 0 (hasKey $group "gpuClass") -}}
{{- $image := default $top.Values.images.farm $group.image -}}
- groupName: {{ index . 1 }}
  replicas: {{ default 0 $group.minReplicas | int64 }}
  minReplicas: {{ default 0 $group.minReplicas | int64 }}
  maxReplicas: {{ default 1 $group.maxReplicas | int64 }}
  rayStartParams:
    {{- if $gpus }}
    num-cpus: "0"  # who compiles needs no GPU: these only time and verify
    num-gpus: {{ $gpus | quote }}
    # Ray wants JSON in quotes of its own.
    resources: {{ printf "'\"{\\\"%s\\\": %d}\"'" $group.gpuClass $gpus }}
    {{- else }}
    num-cpus: {{ $group.cpus | int64 | quote }}
    {{- end }}
    object-store-memory: {{ $top.Values.farm.ray.objectStoreBytes | int64 | quote }}
  template:
    metadata:
      labels:
        {{- include "fusec.rayLabels" $top | nindent 8 }}
    spec:
      # A worker that ended is replaced by another, never started again under its old name.
      restartPolicy: Never
      automountServiceAccountToken: false
      {{- include "fusec.rayPod" $top | nindent 6 }}
      {{- include "fusec.placement" $group | nindent 6 }}
      {{- with $group.runtimeClassName }}
      runtimeClassName: {{ . | quote }}
      {{- end }}
      containers:
        - name: ray-worker
          image: {{ include "fusec.imageOf" (list $top $image) }}
          imagePullPolicy: {{ default "IfNotPresent" $image.pullPolicy }}
          env:
            {{- include "fusec.rayEnv" $top | nindent 12 }}
          resources:
            requests:
              {{- toYaml $group.resources.requests | nindent 14 }}
            limits:
              {{- toYaml $group.resources.limits | nindent 14 }}
              {{- if $gpus }}
              {{ default "nvidia.com/gpu" $group.gpuResource }}: {{ $gpus | quote }}
              {{- end }}
          securityContext:
            {{- include "fusec.containerSecurity" $top | nindent 12 }}
          volumeMounts:
            - name: tmp
              mountPath: /tmp
      volumes:
        - name: tmp
          emptyDir:
            sizeLimit: {{ default "20Gi" $group.tmpSize | quote }}
{{- end -}}
