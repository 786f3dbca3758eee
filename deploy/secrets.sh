#!/bin/sh
# Makes the secrets of docker-compose.yml, one file each, in deploy/secrets. What is there already is kept.
#
# Only their owner may enter the folder. The files themselves are readable, since each is mounted into containers
# whose users are nobody on this machine.
set -eu
folder=$(dirname "$0")/secrets
mkdir -p "$folder"
chmod 700 "$folder"

make() {
  if [ ! -e "$folder/$1" ]; then
    printf '%s%s\n' "$2" "$(head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n')" > "$folder/$1"
    chmod 444 "$folder/$1"
    echo "made $folder/$1"
  fi
}

for user in api worker operator server; do
  make "redis_${user}_password" ""
done
make admin_key sk-
