{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* What a JSON Schema cannot say of the agent's configuration. The agent refuses the same. */ -}}
{{- define "sluice.checkConfig" -}}
{{- range $key := list "clusterCIDRs" "serviceCIDRs" "nonMasqueradeCIDRs" -}}
{{- range $i, $network := index $.Values.config $key -}}
{{- include "sluice.checkNetwork" (dict "at" (printf "/config/%s/%d" $key $i) "network" $network) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.config.networkPolicy.enabled (not .Values.config.network.firewall) -}}
{{- fail "at '/config/networkPolicy/enabled': true needs config.network.firewall: true, whose plugin gives a pod its policies" -}}
{{- end -}}
{{- $interval := float64 (include "sluice.seconds" .Values.config.garbage.interval) -}}
{{- if and (gt $interval 0.0) (lt $interval 10.0) -}}
{{- fail (printf "at '/config/garbage/interval': %s is too short: at least 10s, or 0s for never" .Values.config.garbage.interval) -}}
{{- end -}}
{{- if lt (float64 (include "sluice.seconds" .Values.config.wireguard.keyRotation)) 3600.0 -}}
{{- fail (printf "at '/config/wireguard/keyRotation': %s is too short: at least 1h" .Values.config.wireguard.keyRotation) -}}
{{- end -}}
{{- end -}}

{{- /* The seconds of a duration such as 1h30m. */ -}}
{{- define "sluice.seconds" -}}
{{- $sum := 0.0 -}}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001 -}}
{{- range regexFindAll "[0-9.]+[a-zµ]+" . -1 -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- $sum = addf $sum (mulf $number (index $units (trimPrefix $number .))) -}}
{{- end -}}
{{- printf "%.9f" $sum -}}
{{- end -}}

{{- /* Bits of an address behind its prefix length: the words of the address are octets, or IPv6's groups. */ -}}
{{- define "sluice.checkNetwork" -}}
{{- $address := first (splitList "/" .network) -}}
{{- $left := int (last (splitList "/" .network)) -}}
{{- $width := 8 -}}
{{- $words := list -}}
{{- if contains ":" $address -}}
{{- $width = 16 -}}
{{- range $i, $half := splitList "::" $address -}}
{{- $groups := compact (splitList ":" $half) -}}
{{- if $i -}}
{{- range until (int (sub 8 (add (len $words) (len $groups)))) -}}
{{- $words = append $words 0 -}}
{{- end -}}
{{- end -}}
{{- range $groups -}}
{{- $words = append $words (int64 (printf "0x%s" .)) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- range splitList "." $address -}}
{{- $words = append $words (int64 .) -}}
{{- end -}}
{{- end -}}
{{- range $words -}}
{{- $free := 1 -}}
{{- range until (int (max 0 (sub $width (max 0 $left)))) -}}
{{- $free = mul $free 2 -}}
{{- end -}}
{{- if mod . $free -}}
{{- fail (printf "at '%s': %s has bits beyond its prefix length" $.at $.network) -}}
{{- end -}}
{{- $left = sub $left $width -}}
{{- end -}}
{{- end -}}
