{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* Names are fixed: two releases on one node would fight for its directories. */ -}}
{{- define "sluice.name" -}}sluice-agent{{- end }}

{{- define "sluice.selectorLabels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/component: agent
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* Cluster-wide addresses. */ -}}
{{- define "sluice.ipamName" -}}sluice-ipam{{- end }}
{{- define "sluice.ipamLabels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/component: ipam
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "sluice.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The agent refuses network.bridge without the plugin that uses it. */ -}}
{{- define "sluice.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if ne $config.network.plugin "bridge" -}}
{{- $_ := unset $config.network "bridge" -}}
{{- end -}}
{{- if and .Values.ipam.enabled (not $config.ipam.serviceAccount) -}}
{{- $_ := set $config.ipam "serviceAccount" (printf "%s/%s" .Release.Namespace (include "sluice.ipamName" .)) -}}
{{- end -}}
{{- if .Values.observeSecret -}}
{{- $_ := set $config.observe "tls" (dict "cert" "/etc/sluice-observe/tls.crt" "key" "/etc/sluice-observe/tls.key" "clientCA" "/etc/sluice-observe/ca.crt") -}}
{{- end -}}
{{ toYaml $config }}
{{- end }}

{{- define "sluice.runtimeDir" -}}
{{ .Values.config.runtimeEndpoint | trimPrefix "unix://" | dir }}
{{- end }}

{{- /* A probe of kubelet comes from the node, where the agent listens. An address of all interfaces is asked by loopback. */ -}}
{{- define "sluice.healthHost" -}}
{{- $host := regexReplaceAll ":[0-9]+$" .Values.config.health.address "" | trimPrefix "[" | trimSuffix "]" -}}
{{- if eq $host "0.0.0.0" -}}127.0.0.1{{- else if eq $host "::" -}}::1{{- else -}}{{ $host }}{{- end }}
{{- end }}
{{- define "sluice.healthPort" -}}
{{ regexFind "[0-9]+$" .Values.config.health.address }}
{{- end }}

{{- define "sluice.admissionPolicy" -}}
{{- if or (eq .Values.admissionPolicy "always") (and (eq .Values.admissionPolicy "auto") (semverCompare ">=1.32.0-0" .Capabilities.KubeVersion.Version)) -}}true{{- end }}
{{- end }}
