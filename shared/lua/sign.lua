#!lua flags=allow-oom
-- Keep a process's presence record, and add what it counted. → how many such processes there are
-- Keys: processes: those of its kind; totals. record: in JSON; counters: counter and how much more, for each.
redis.call('HSET', processes, process, record)
for index = counters_at, #ARGV, 2 do
  redis.call('HINCRBY', totals, ARGV[index], ARGV[index + 1])
end
return redis.call('HLEN', processes)
