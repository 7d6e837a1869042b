-- A counter lost keys, or its entry in the registry. Create them anew and, if strata were lost and unless told
-- otherwise, forget how far the topics that feed it were read, so that every worker reads them again.
-- KEYS[1] offsets hash of the group; KEYS[2] registry; KEYS[3..] strata.
-- ARGV: an empty dense HyperLogLog, the counter, its spec as JSON, then the topics to forget.
-- Returns the number of strata created; 0: none was missing, or another worker was here first.
local created = 0
for i = 3, #KEYS do
  created = created + redis.call('SETNX', KEYS[i], ARGV[1])
end
if created == 0 then
  redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3])
  return 0
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
for t = 4, #ARGV do
  local topic = ARGV[t]
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if field == topic or string.sub(field, 1, #topic + 1) == topic .. ':' then
      redis.call('HDEL', KEYS[1], field)
    end
  end
end
return created
