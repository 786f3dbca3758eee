-- Make a session. ARGV 7 agent  8 user  9 ms that it lives unless somebody speaks in it
-- → created | exists
if redis.call('EXISTS', META) == 1 then
  return { 'exists' }
end
redis.call('HSET', META, 'epoch', int(NOW), 'seq', '0', 'bytes', '0', 'incarnation', INCARNATION, 'head', '1', 'dropped', '0', 'kept', '0', 'forgotten', '0',
  'agent', ARGV[7], 'user', ARGV[8], 'active', '', 'created', int(NOW), 'memory', '0')
redis.call('PEXPIRE', META, ARGV[9])
return { 'created' }
