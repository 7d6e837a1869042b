-- Progress of a task, in a write of its own.
-- KEYS[1] checkpoints, KEYS[2] claim. ARGV: token, expected, name, cursor, counts, runner, ok, failed.
local refused = checkpoint.refused(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if refused then
  return refused
end
checkpoint.advance(KEYS[1], unpack(ARGV, 3))
return 'ok'
