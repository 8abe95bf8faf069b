{{/* Names and labels. Parts: cache, collector, gateway, ray, test. */}}

{{- define "fusec.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "fusec.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "fusec.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "fusec.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that choose a part's pods: call with (list $ "cache"). */}}
{{- define "fusec.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ include "fusec.name" $top }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* "true" where there is a farm on Ray. */}}
{{- define "fusec.ray" -}}
{{- if and .Values.farm.enabled (eq .Values.farm.pool "ray") -}}true{{- end -}}
{{- end -}}

{{/* Ray's pods are known by what KubeRay names them. */}}
{{- define "fusec.raySelector" -}}
ray.io/cluster: {{ include "fusec.fullname" . }}-ray
{{- end -}}

{{- define "fusec.labels" -}}
{{- $top := index . 0 -}}
{{ include "fusec.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version }}
{{- with $top.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image: call with (list $ "cache") or (list $ "farm"). */}}
{{- define "fusec.image" -}}
{{- $top := index . 0 -}}
{{- include "fusec.imageOf" (list $top (index $top.Values.images (index . 1))) -}}
{{- end -}}

{{- define "fusec.imageOf" -}}
{{- $top := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest | quote -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default $top.Chart.AppVersion $image.tag) | quote -}}
{{- end -}}
{{- end -}}

{{- define "fusec.cacheAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- include "fusec.fullname" . -}}-cache
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "fusec.gatewayAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- include "fusec.fullname" . -}}-gateway
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- define "fusec.tokensSecret" -}}
{{- default (printf "%s-tokens" (include "fusec.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{- define "fusec.signingSecret" -}}
{{- default (printf "%s-signing" (include "fusec.fullname" .)) .Values.signing.existingSecret -}}
{{- end -}}

{{- define "fusec.trustedConfigMap" -}}
{{- default (printf "%s-trusted" (include "fusec.fullname" .)) .Values.signing.existingConfigMap -}}
{{- end -}}

{{/* "true" where clients and the service have public keys to check with. */}}
{{- define "fusec.trusted" -}}
{{- if or .Values.signing.existingConfigMap .Values.signing.trustedKeys -}}true{{- end -}}
{{- end -}}

{{- define "fusec.s3Secret" -}}
{{- default (printf "%s-s3" (include "fusec.fullname" .)) .Values.store.s3.existingSecret -}}
{{- end -}}

{{/* What clients, the gateway and the test set as the address of the service. */}}
{{- define "fusec.cacheUrl" -}}
{{- $scheme := ternary "https" "http" (not (empty .Values.cache.tls.secret)) -}}
{{- printf "%s://%s-cache.%s.svc:%d" $scheme (include "fusec.fullname" .) .Release.Namespace (int .Values.cache.service.port) -}}
{{- end -}}

{{/* The name of the gateways' Service, also in their certificate. */}}
{{- define "fusec.gatewayName" -}}
{{- printf "%s-gateway.%s.svc" (include "fusec.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* The farm's gateways, for the service, which looks up how many there are. */}}
{{- define "fusec.gatewayUrl" -}}
{{- $scheme := ternary "https" "http" (not (empty .Values.farm.gateway.tls.secret)) -}}
{{- printf "%s://%s:8701" $scheme (include "fusec.gatewayName" .) -}}
{{- end -}}
