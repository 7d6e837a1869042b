-- Enter a counter into the registry and create its strata, all of them, so that one missing later has vanished.
-- If the group has already read topics that feed the counter, only its entry got lost (deleted, evicted), perhaps
-- together with strata: those are left missing, to be noticed like any other that vanished.
-- KEYS[1] registry; KEYS[2] offsets hash of the group; KEYS[3..] strata.
-- ARGV: the counter, its spec as JSON, an empty dense HyperLogLog, then the topics that feed it.
-- Returns the spec that holds: an existing counter keeps its own.
local existing = redis.call('HGET', KEYS[1], ARGV[1])
if existing then
  return existing
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
local read = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  read[string.match(field, '^[^:]*')] = true
end
for t = 4, #ARGV do
  if read[ARGV[t]] then
    return ARGV[2]
  end
end
for i = 3, #KEYS do
  redis.call('SETNX', KEYS[i], ARGV[3])
end
return ARGV[2]
