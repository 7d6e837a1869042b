-- Say what is looked for inside the messages of a topic. What was counted under another definition is counted anew:
-- counters whose paths changed are emptied, and topics are forgotten, so that every worker reads them again.
-- KEYS[1] definitions hash of the group; KEYS[2] offsets hash of the group; KEYS[3] registry; KEYS[4..] strata to empty
-- ARGV: topic, the definition the worker saw ('' for none), the new one, an empty dense HyperLogLog,
--       n counters, then n times: name, its new entry in the registry; then the topics to forget
-- Returns 0 if the definition is not the one the worker saw; nothing was done.
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
for i = 4, #KEYS do
  redis.call('SET', KEYS[i], ARGV[4])
end
local at = 5
for _ = 1, tonumber(ARGV[5]) do
  redis.call('HSET', KEYS[3], ARGV[at + 1], ARGV[at + 2])
  at = at + 2
end
for t = at + 1, #ARGV do
  local topic = ARGV[t]
  for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
    if field == topic or string.sub(field, 1, #topic + 1) == topic .. ':' then
      redis.call('HDEL', KEYS[2], field)
    end
  end
end
return 1
