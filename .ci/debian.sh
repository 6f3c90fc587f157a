# Bare Debian systems: Debian's smallest installation and Python, each in a folder that is kept between runs. .ci/run
# sources this file.

bare_systems=/var/cache/plants-ci
# The first two have nothing but these Pythons; the last one compiles wheels for the newest of them.
newest=3.15
declare -A packages_of=(
    [trixie]=ca-certificates,python3-venv
    [sid]=ca-certificates,python3-venv,python$newest-venv
    [sid-compiler]=build-essential,ca-certificates,python3-venv,python$newest-dev,python$newest-venv
)
stranger_id=12321

why_no_bare_systems() {  # Print why this machine cannot have them, or nothing if it can.
    if [ "$(id -u)" != 0 ]; then
        echo "only root can install one"
    elif ! bwrap --bind / / --dev /dev --proc /proc --unshare-pid true 2> /dev/null; then
        echo "bwrap may not make namespaces"
    elif ! command -v debootstrap > /dev/null && ! apt-get install -y -qq debootstrap > /dev/null 2>&1; then
        echo "debootstrap cannot be installed"
    elif [ -z "$(debian_mirror)" ]; then
        echo "apt is not configured with a mirror of Debian"
    fi
}

debian_mirror() {  # Print the address of the mirror that apt is configured with.
    apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(SITE)' 2> /dev/null |
        awk '$1 == "Debian" && $2 !~ /-/ && !found++ { print $3 }'
}

install_bare_system() {  # NAME: install a system, unless it is there, is complete, and is at most a month old.
    local root=$bare_systems/$1 packages=${packages_of[$1]}
    if [ -n "$(find "$root.complete" -mtime -30 2> /dev/null)" ] && [ "$(cat "$root.complete")" = "$packages" ]; then
        return
    fi
    rm -rf --one-file-system "$root" "$root.complete"
    mkdir -p "$bare_systems"
    # What debootstrap mounts is unmounted when it ends, because it has a mount namespace of its own.
    timeout 900 unshare --mount --propagation private debootstrap --variant=minbase --include="$packages" \
        "${1%-compiler}" "$root" "$(debian_mirror)" > "$root.log" 2>&1 &&
        chroot "$root" useradd --uid "$stranger_id" --no-create-home stranger >> "$root.log" 2>&1 &&
        echo "$packages" > "$root.complete"
}

install_bare_systems() {  # SUITE VERSION: install what the tests with this Python need.
    install_bare_system "$1" && { [ "$2" != "$newest" ] || install_bare_system "$1-compiler"; }
}

# Run a command in a system, as root or as the user "stranger", in the folder "my plants" of a home. Its mounts are in a
# namespace that ends with the command. Otherwise, removing the system's folder would also remove this machine's /dev.
in_bare_system() {  # NAME USER HOME COMMAND...
    local home=/home/$2
    bwrap --bind "$bare_systems/$1" / --dev /dev --perms 1777 --tmpfs /dev/shm --proc /proc --perms 1777 --tmpfs /tmp \
        --ro-bind /etc/resolv.conf /etc/resolv.conf --bind "$3" "$home" --chdir "$home/my plants" \
        --unshare-pid --die-with-parent --cap-add ALL --clearenv \
        --setenv HOME "$home" --setenv LANG C.UTF-8 --setenv PIP_COMPILE 0 \
        --setenv PATH "$home/bin:/usr/sbin:/usr/bin:/sbin:/bin" "${settings_of_pip[@]}" \
        setpriv --reuid "$2" --regid "$2" --clear-groups "${@:4}"
}

# Set settings_of_pip to options of bwrap that set what this machine's pip is configured with, such as a package index,
# and bind the files and folders that this names.
read_settings_of_pip() {
    mapfile -t settings_of_pip < <(python3 .ci/settings_of_pip.py)
}

# Run the README's commands as they stand and, with the newest Python, test a compiled wheel. If TESTS are given, only
# these are run.
test_on_bare_debian() {  # SUITE VERSION USER [TESTS...]
    local home=$scratch/$1-$2
    copy_checkout "$home/my plants"
    mkdir "$home/bin"
    ln -s "/usr/bin/python$2" "$home/bin/python3"
    chmod 700 "$home"
    [ "$3" = root ] || chown -R "$stranger_id:$stranger_id" "$home"
    in_bare_system "$1" "$3" "$home" python3 .ci/readme.py "${@:4}"
    if [ "$2" = "$newest" ]; then
        in_bare_system "$1-compiler" "$3" "$home" sh -c "$build_wheel" sh .venv/bin/python
        in_bare_system "$1" "$3" "$home" sh .ci/test_wheel .venv/bin/python "${in_parallel[@]}"
    fi
    rm -rf --one-file-system "$home"
}
