--- tokenizer.json, and texts: what follows a line with `=== ` is encoded with a small tokenizer of
--- the kind that the line names; without one, the input is a tokenizer.json and encodes some texts.
local json = require "accelerate.utils.json"
local tokenizers = require "accelerate.tokenizers"

local TEXTS = { "a The (quick) don't 12345  fox\n\n ",
  "\195\156nd \239\172\129 x\204\129\204\163 \228\186\186 \240\159\142\137",
  "bad \255 \0 bytes \237\160\128", ("word"):rep(40), "" }

local configs = {}

local function made(file)
  if not configs[file] then
    local f = assert(io.open(file, "rb"))
    configs[file] = assert(json.decode(f:read "*a"))
    f:close()
  end
  return tokenizers.Tokenizer(file, configs[file])
end

-- Rows of what is cut off hold the tokens of the text, one after the other.
local function windows_of(t, text)
  local whole = t:encode(text, { add_special_tokens = false })
  local parts = t({ text }, { add_special_tokens = false, truncation = true, max_length = 5, stride = 2,
    return_overflowing_tokens = true, return_offsets_mapping = true })
  local at = 0
  for i, row in ipairs(parts.input_ids) do
    for k = i == 1 and 1 or 3, #row do
      at = at + 1
      if row[k] ~= whole[at] then error(("part %d has another token %d"):format(i, at), 0) end
    end
  end
  if at ~= #whole then error(("the parts hold %d of %d tokens"):format(at, #whole), 0) end
  -- a template of many special tokens leaves no room for a stride
  pcall(t, "of it", text,
    { truncation = true, max_length = 12, stride = 1, return_overflowing_tokens = true })
end

local function texts_of(t, texts)
  local ids = t:encode_batch(texts, { return_offsets_mapping = true, return_word_ids = true })
  for i, row in ipairs(ids.input_ids) do
    local last = #texts[i]
    for k, at in ipairs(ids.offset_mapping[i]) do
      if at[1] > at[2] or at[2] > last then
        error(("offsets %d to %d of token %d"):format(at[1], at[2], k), 0)
      end
    end
    local once = t:encode(texts[i])
    for k = 1, math.max(#once, #row) do
      if once[k] ~= row[k] then error("ids differ with offsets", 0) end
    end
    t:decode(row)
    if #texts[i] < 400 then windows_of(t, texts[i]) end
  end
end

return {
  ending = ".json",
  read = function(path, bytes)
    local kind, rest = (bytes or ""):match("^=== (%l+%d?)\n(.*)$")
    if kind and not kind:find("^others") then
      local file = "spec/reference/tokenizers/" .. kind .. ".json"
      -- made anew for each input: what one keeps between texts counts as memory that is held
      local ok, t = pcall(made, file)
      if ok then texts_of(t, { rest }) end
      return 0
    end
    local t = tokenizers.from_file(path)
    local ok, why = pcall(texts_of, t, TEXTS)
    -- a vocabulary without the unknown token
    if not ok and not why:find("unknown token", 1, true) then error(path .. ": " .. why, 0) end
    return 0
  end,
  most = 64,
}
