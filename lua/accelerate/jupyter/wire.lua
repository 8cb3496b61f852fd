--- Messages of the Jupyter protocol (jupyter-client.readthedocs.io/en/stable/messaging.html):
--- frames signed with a key that the connection file holds.
---
---   identities of the sender ... | <IDS|MSG> | signature | header | parent header | metadata |
---   content | buffers ...
local core = require "accelerate.core"
local json = require "accelerate.utils.json"
local text = require "accelerate.jupyter.text"

local M = {}

M.PROTOCOL = "5.3"

local DELIMITER = "<IDS|MSG>"
local FRAMES_MOST = 64 -- of identities, and of buffers
local REMEMBERED = 65536 -- signatures that are not taken again

---@class accelerate.jupyter.Message
---@field ids string[] what a reply begins with
---@field kind string "execute_request"
---@field session string the client's
---@field header string as it came, for the replies' parent header
---@field content table

---@class accelerate.jupyter.Wire
---@field key string
---@field session string this kernel's
---@field seen table<string, true> signatures

--- Makes what signs and checks messages.
---@param key string "": messages are not signed
---@param session string
---@return accelerate.jupyter.Wire
function M.new(key, session) return { key = key, session = session, seen = {}, n = 0, sent = 0 } end

local function object(name, frame)
  local value, why = json.decode(frame)
  if type(value) ~= "table" then
    return nil, ("its %s is no object: %s"):format(name, why or "another value")
  end
  return value
end

local function check_signature(wire, frames, at)
  if wire.key == "" then return true end
  local given = frames[at]:lower()
  local right = core._hmac_sha256(wire.key, unpack(frames, at + 1, at + 4))
  if not core._same_text(given, right) then
    return nil, "its signature is not the one of the connection's key"
  end
  if wire.seen[given] then return nil, "its signature has come before" end
  wire.n = wire.n + 1
  if wire.n > REMEMBERED then wire.seen, wire.n = {}, 1 end
  wire.seen[given] = true
  return true
end

--- Reads a message.
---@param wire accelerate.jupyter.Wire
---@param frames string[]
---@return accelerate.jupyter.Message?
---@return string? problem
function M.read(wire, frames)
  local ids, at = {}, 1
  while frames[at] and frames[at] ~= DELIMITER do
    ids[at], at = frames[at], at + 1
  end
  if #frames < at + 5 then
    return nil, ("it has %d frames, without the 6 from %s on"):format(#frames, DELIMITER)
  end
  if #ids > FRAMES_MOST or #frames - at - 5 > FRAMES_MOST then return nil, "it has too many frames" end
  local fine, why = check_signature(wire, frames, at + 1)
  if not fine then return nil, why end
  local header, content
  header, why = object("header", frames[at + 2])
  if not header then return nil, why end
  content, why = object("content", frames[at + 5])
  if not content then return nil, why end
  if type(header.msg_type) ~= "string" then return nil, "its header has no msg_type" end
  return { ids = ids, kind = header.msg_type, session = tostring(header.session or ""),
    header = frames[at + 2],
    content = content }
end

local function stamp() return os.date("!%Y-%m-%dT%H:%M:%SZ") end

--- Returns the frames of a message of this kernel.
---@param wire accelerate.jupyter.Wire
---@param ids string[]
---@param kind string "execute_reply"
---@param content table
---@param parent accelerate.jupyter.Message?
---@return string[]
function M.write(wire, ids, kind, content, parent)
  wire.sent = wire.sent + 1
  local header = json.encode { msg_id = ("%s_%d"):format(wire.session, wire.sent), session = wire.session,
    username = "accel", date = stamp(), msg_type = kind, version = M.PROTOCOL }
  local parts = { header, parent and parent.header or "{}", "{}", json.encode(text.valid(content)) }
  local frames = { unpack(ids) }
  frames[#frames + 1] = DELIMITER
  frames[#frames + 1] = wire.key == "" and "" or core._hmac_sha256(wire.key, unpack(parts))
  for _, part in ipairs(parts) do frames[#frames + 1] = part end
  return frames
end

return M
