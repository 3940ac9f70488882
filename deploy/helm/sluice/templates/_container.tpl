{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* The container of the DaemonSet, without its name and its probes. */ -}}
{{- define "sluice.container" -}}
{{- $prefix := .Values.config.paths.hostPrefix -}}
image: {{ include "sluice.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [sluice-agent]
args:
  {{- if eq .Values.mode "remove" }}
  - remove
  - --wait
  {{- end }}
  - --config
  - /etc/sluice-agent/agent.yaml
  - --node-name
  - $(NODE_NAME)
  - --log-level
  - {{ .Values.logLevel }}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  {{- with .Values.apiServer }}
  {{- if .host }}
  - name: KUBERNETES_SERVICE_HOST
    value: {{ .host | quote }}
  - name: KUBERNETES_SERVICE_PORT
    value: {{ .port | quote }}
  {{- end }}
  {{- end }}
{{- with .Values.resources }}
resources:
  {{- range $kind, $quantities := . }}
  {{- with $quantities }}
  {{ $kind }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}
securityContext:
  privileged: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsUser: 0
  runAsGroup: 0
  capabilities:
    drop: [ALL]
    # NET_ADMIN: routes and devices. BPF: maps. PERFMON: without it, the plugins find that eBPF cannot run.
    add:
      {{- concat (list "NET_ADMIN" "BPF" "PERFMON") .Values.securityContext.extraCapabilities | uniq | toYaml | nindent 6 }}
  seccompProfile:
    type: {{ .Values.securityContext.seccompProfile }}
  appArmorProfile:
    type: {{ .Values.securityContext.appArmorProfile }}
  {{- with .Values.securityContext.seLinuxType }}
  seLinuxOptions:
    type: {{ . }}
    level: s0
  {{- end }}
volumeMounts:
  - name: agent-config
    mountPath: /etc/sluice-agent
    readOnly: true
  - name: cni-bin
    mountPath: {{ $prefix }}{{ .Values.config.paths.binDir }}
  - name: cni-conf
    mountPath: {{ $prefix }}{{ .Values.config.paths.confDir }}
  - name: cni-state
    mountPath: /var/lib/cni
  - name: state
    mountPath: /var/lib/sluice
  - name: run
    mountPath: /run/sluice
  # Network namespaces come and go, and attachments name them by either path.
  - name: netns
    mountPath: /run/netns
    mountPropagation: HostToContainer
  - name: netns
    mountPath: /var/run/netns
    mountPropagation: HostToContainer
  - name: runtime
    mountPath: {{ include "sluice.runtimeDir" . }}
    mountPropagation: HostToContainer
  - name: bpffs
    mountPath: {{ .Values.hostPaths.bpffs }}
    mountPropagation: HostToContainer
  # In a cgroup namespace of its own the container would see its own cgroup as the root, and move the socket programs there.
  - name: cgroup
    mountPath: {{ .Values.hostPaths.cgroup }}
    readOnly: true
  # A runtime makes /proc/sys read-only in a container. Plugins write these keys on the node, and what the agent loads depends on them.
  - name: sysctl
    mountPath: /run/host/proc/sys/net
  {{- if .Values.observeSecret }}
  - name: observe
    mountPath: /etc/sluice-observe
    readOnly: true
  {{- end }}
  {{- if .Values.hostPaths.config }}
  - name: node-config
    mountPath: /etc/sluice
  {{- end }}
{{- end }}
