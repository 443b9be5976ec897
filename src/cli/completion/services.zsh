

# The Services that the daemon knows.
_kube_ipvs_services() {
    compadd -- ${(f)"$(kube-ipvs completion --services 2> /dev/null)"}
}

