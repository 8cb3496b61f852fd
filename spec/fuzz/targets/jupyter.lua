--- Messages of the Jupyter protocol: frames between zero bytes, signed and not; the texts in them.
local text = require "accelerate.jupyter.text"
local wire = require "accelerate.jupyter.wire"

local function frames_of(bytes)
  local frames = {}
  for frame in (bytes .. "\0"):gmatch("(%Z*)%z") do frames[#frames + 1] = frame end
  return frames
end

local function check_text(bytes)
  local valid = text.utf8(bytes)
  if text.utf8(valid) ~= valid then error("what was made UTF-8 is changed again", 0) end
  local n = text.characters(valid)
  if text.bytes_before(valid, n) ~= #valid then error("the characters do not end with the text", 0) end
  if text.unfinished(bytes) > math.min(3, #bytes) then error("an unfinished character is too long", 0) end
end

return {
  ending = ".msg",
  read = function(path)
    local file = assert(io.open(path, "rb"))
    local bytes = file:read("*a")
    file:close()
    check_text(bytes)
    local frames = frames_of(bytes)
    if wire.read(wire.new("a key", "session"), frames) then error("a wrong signature is taken", 0) end
    local message, why = wire.read(wire.new("", "session"), frames)
    if not message then error(("'%s': %s"):format(path, why), 0) end
    wire.write(wire.new("a key", "session"), message.ids, message.kind,
      { code = tostring(message.content.code) },
      message)
    return message.kind
  end,
}
