-- Take a file of a session that its caller's next script refers to (`lacks` and `store` in _session.lua).
-- KEYS 1 files  ARGV 1 digest  2 data  3 ms to live where the session has no files: that script gives it more
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
if redis.call('PTTL', KEYS[1]) < 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return 1
