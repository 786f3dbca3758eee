-- Make a session. ARGV 7 agent  8 user  9 ms that it lives unless somebody speaks in it
-- → created | exists
if redis.call('EXISTS', META) == 1 then
  return { 'exists' }
end
make(ARGV[7], ARGV[8])
redis.call('PEXPIRE', META, ARGV[9])
return { 'created' }
