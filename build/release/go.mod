module github.com/sluice-cni/sluice/build/release

go 1.25.0

replace github.com/sluice-cni/sluice => ../..

require (
	github.com/CycloneDX/cyclonedx-go v0.9.3
	github.com/google/go-cmp v0.7.0
	github.com/google/go-containerregistry v0.21.4
	github.com/klauspost/compress v1.18.5
	github.com/sluice-cni/sluice v0.0.0-00010101000000-000000000000
	golang.org/x/sys v0.45.0
)

require (
	github.com/containerd/stargz-snapshotter/estargz v0.18.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	github.com/stretchr/testify v1.11.1 // indirect
	github.com/vbatts/tar-split v0.12.2 // indirect
	golang.org/x/sync v0.20.0 // indirect
)
