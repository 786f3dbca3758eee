-- Make a session. agent, user: whose it is; life_ms: how long it lives unless a turn comes.
-- → created | exists
if redis.call('EXISTS', META) == 1 then
  return { 'exists' }
end
make(agent, user)
redis.call('PEXPIRE', META, life_ms)
return { 'created' }
