-- Take a file of a session that its caller's next script refers to (`files_missing` and `store_files` in _session.lua). Keys: files.
-- life_ms: to live where the session has no files; that script gives it more.
redis.call('HSETNX', files, digest, data)
if redis.call('PTTL', files) < 0 then
  redis.call('PEXPIRE', files, life_ms)
end
return 1
