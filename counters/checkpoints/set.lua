-- Fields of a row.
-- KEYS[1] checkpoints, KEYS[2] claim. ARGV: token, name, '1' if the row must exist, then pairs of field and value.
local refused = checkpoint.refused(KEYS[1], KEYS[2], ARGV[1], '*', ARGV[2])
if refused then
  return refused
end
if ARGV[3] == '1' and not checkpoint.read(KEYS[1], ARGV[2]) then
  return 'missing'
end
local fields = {}
for i = 4, #ARGV, 2 do
  fields[ARGV[i]] = ARGV[i + 1]
end
checkpoint.write(KEYS[1], ARGV[2], fields)
return 'ok'
