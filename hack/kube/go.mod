// The requirements stand in versions/<Kubernetes version>.mod, one file for
// each version that can be built (go build -modfile=...). See ./update.
module dradriver.dev/hack/kube

go 1.24.0
