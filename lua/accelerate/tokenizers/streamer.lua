--- Text of tokens as they come: what `generate { stream = ... }` takes.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

---@class accelerate.TextStreamer
local TextStreamer = class "TextStreamer"
M.TextStreamer = TextStreamer

local OPTIONS = { skip_special_tokens = { "boolean", default = false },
  clean_up_tokenization_spaces = { "boolean", optional = true }, write = { "function", optional = true } }

local LOST = "\239\191\189" -- U+FFFD: the last bytes are no character yet
local PATIENCE = 8 -- tokens that a character may take

local function to_stdout(text, ended)
  io.write(text, ended and "\n" or "")
  io.flush()
end

--- Writes the text of generated tokens while they come: `model:generate(prompt, { stream =
--- tokenizers.TextStreamer(tokenizer) })`, for one row. A character of several tokens is written
--- when it is whole. The pieces together are what `decode` makes of all tokens.
---@param tokenizer accelerate.Tokenizer
---@param opts? { skip_special_tokens: boolean, clean_up_tokenization_spaces: boolean?, write:
---  fun(text: string, ended: boolean) } skip_special_tokens: default false; write: gets each piece,
---  and at the end the rest with ended = true; default: to stdout, with a line break at the end
function TextStreamer:init(tokenizer, opts)
  options.value("TextStreamer", "tokenizer", tokenizer, { "Tokenizer" })
  local o = options.check("TextStreamer", opts, OPTIONS)
  self.tokenizer, self.write = tokenizer, o.write or to_stdout
  self.how = { skip_special_tokens = o.skip_special_tokens,
    clean_up_tokenization_spaces = o.clean_up_tokenization_spaces }
  self:_begin()
end

-- window: tokens whose text has been written, as context, and those behind them; written: how many
-- of them.
function TextStreamer:_begin() self.window, self.written = {}, 0 end

-- The text behind the written one.
function TextStreamer:_rest()
  local before = self.tokenizer:decode({ unpack(self.window, 1, self.written) }, self.how)
  return self.tokenizer:decode(self.window, self.how):sub(#before + 1)
end

function TextStreamer:__call(tokens)
  if type(tokens) ~= "table" or #tokens ~= 1 then
    fail("TextStreamer: one row of tokens is written, got %s",
      type(tokens) == "table" and #tokens .. " rows" or options.show(tokens))
  end
  local window = self.window
  window[#window + 1] = tokens[1]
  local rest = self:_rest()
  local waits = rest:sub(-#LOST) == LOST and #window - self.written < PATIENCE
  if rest == "" or waits then return end
  self.write(rest, false)
  self.window = { unpack(window, self.written + 1) }
  self.written = #self.window
end

--- Writes what is left, and is ready for other tokens. `generate` calls it at its end.
function TextStreamer:finish()
  local rest = self:_rest()
  self:_begin()
  self.write(rest, true)
end

return M
