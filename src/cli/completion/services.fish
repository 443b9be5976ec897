# The Services that the daemon knows.
complete -c kube-ipvs -n "__fish_kube_ipvs_using_subcommand explain list" -f -a "(kube-ipvs completion --services 2> /dev/null)"
