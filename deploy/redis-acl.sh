#!/bin/sh
# Writes the broker's ACL file to standard output: redis.acl without its comments, one line a user, each
# password in it as the SHA-256 of a file's content.
#
#   redis-acl.sh FOLDER        the passwords are FOLDER/redis_api_password, …_worker_…, …_operator_…
#
# The user `server` is for brokers with replicas: it is left out where there is no FOLDER/redis_server_password.
set -eu
folder=$1

hash_of() {
  # What a shell reads of the file: without the line's end.
  password=$(cat "$folder/redis_$1_password")
  if [ "${#password}" -lt 16 ]; then
    echo "redis-acl.sh: $folder/redis_$1_password: a password has 16 characters at least" >&2
    exit 1
  fi
  printf %s "$password" | sha256sum | cut -d ' ' -f 1
}

api=$(hash_of api)
worker=$(hash_of worker)
operator=$(hash_of operator)
if [ -e "$folder/redis_server_password" ]; then
  server="s/PASSWORD_OF_SERVER/#$(hash_of server)/"
else
  server="/^user server /d"
fi
sed -e '/^#/d' -e '/^$/d' -e ':join' -e '/\\$/{N;s/ *\\\n */ /;b join' -e '}' \
  -e "s/PASSWORD_OF_API/#$api/" -e "s/PASSWORD_OF_WORKER/#$worker/" -e "s/PASSWORD_OF_OPERATOR/#$operator/" -e "$server" \
  "$(dirname "$0")/redis.acl"
