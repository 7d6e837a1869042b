-- A counter lost keys, or its entry in the registry. Create them anew and, if strata were lost and unless told
-- otherwise, forget how far the topics that feed it were read, so that every worker reads them again.
-- Whatever was lost, the counter has no successor any more: it would lack what the counter is given again.
-- KEYS[1] offsets hash of the group; KEYS[2] registry; KEYS[3..] strata, then strata of the successor.
-- ARGV: the counter, its entry as the worker knows it, the entry if strata were lost, the entry if not,
--       an empty dense HyperLogLog, number of strata, then the topics to forget
-- Returns the number of strata created; 0: only the entry or the successor was lost, or another worker was here
-- first.
local registered = redis.call('HGET', KEYS[2], ARGV[1])
if registered and registered ~= ARGV[2] then
  return 0
end
local last, created = 2 + tonumber(ARGV[6]), 0
for i = 3, last do
  created = created + redis.call('SETNX', KEYS[i], ARGV[5])
end
local succeeded = last == #KEYS or redis.call('EXISTS', unpack(KEYS, last + 1)) == #KEYS - last
if created == 0 and registered and succeeded then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[1], created > 0 and ARGV[3] or ARGV[4])
if last < #KEYS then
  redis.call('DEL', unpack(KEYS, last + 1))
end
if created > 0 then
  forget(KEYS[1], 7)
end
return created
