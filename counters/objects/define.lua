-- Say what is looked for inside the messages of a topic. What was counted under another definition is counted anew:
-- counters whose paths changed are emptied and lose their successors, and topics are forgotten, so that every worker
-- reads them again.
-- KEYS[1] definitions hash of the group; KEYS[2] offsets hash of the group; KEYS[3] registry;
-- KEYS[4..] strata to empty, then strata of successors
-- ARGV: topic, the definition the worker saw ('' for none), the new one, an empty dense HyperLogLog,
--       number of strata to empty, n counters, then n times: name, its entry as the worker knows it, the new one;
--       then the topics to forget
-- Returns 0 if the definition or an entry is not the one the worker saw; nothing was done.
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
  return 0
end
local topics = 7 + 3 * tonumber(ARGV[6])
for i = 7, topics - 1, 3 do
  local registered = redis.call('HGET', KEYS[3], ARGV[i])
  if registered and registered ~= ARGV[i + 1] then
    return 0
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
for i = 7, topics - 1, 3 do
  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 2])
end
for i = 4, #KEYS do
  if i < 4 + tonumber(ARGV[5]) then
    redis.call('SET', KEYS[i], ARGV[4])
  else
    redis.call('DEL', KEYS[i])
  end
end
forget(KEYS[2], topics)
return 1
