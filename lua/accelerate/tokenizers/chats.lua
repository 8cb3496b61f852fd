--- Conversations written by a tokenizer's chat template, as Transformers' apply_chat_template does.
local chat = require "accelerate.tokenizers.chat"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local padding = require "accelerate.tokenizers.padding"
local Tokenizer = require "accelerate.tokenizers.encoding"

local fail, show = options.fail, options.show

local WHERE = "apply_chat_template"

local CHAT = {
  add_generation_prompt = { "boolean", default = false },
  continue_final_message = { "boolean|string", default = false },
  tools = { "table", optional = true },
  documents = { "table", optional = true },
  tokenize = { "boolean", default = true },
  return_tensors = { "boolean|string", default = false, one_of = { true, false, "pt" } },
  return_dict = { "boolean", default = false },
  return_assistant_tokens_mask = { "boolean", default = false },
  chat_template = { "string", optional = true },
  variables = { "table", optional = true },
}

-- ---- which template

--- Returns the chat template for a conversation: the one that is given or named, or else the
--- tokenizer's. Where it has several, "tool_use" with tools, and "default". Raises where there is
--- none.
---@param template string? Jinja, or the name of one of the tokenizer's templates
---@param tools table[]?
---@return string
function Tokenizer:get_chat_template(template, tools)
  options.value("get_chat_template", "template", template, { "string", optional = true })
  options.value("get_chat_template", "tools", tools, { "table", optional = true })
  local own = self.chat_template
  if type(own) ~= "table" then
    return template or own
      or fail("%s: the tokenizer has no chat template; give one as option 'chat_template'", WHERE)
  end
  if template then return own[template] or template end
  return tools and own.tool_use or own.default
    or fail("%s: the tokenizer has several chat templates and none is 'default'; give one of %s as option " ..
      "'chat_template'", WHERE, table.concat(ordered.keys(own), ", "))
end

-- What save_pretrained writes: a text, or a list of templates with names.
function Tokenizer:_written_templates()
  local own = self.chat_template
  if type(own) ~= "table" then return own end
  local list = {}
  for name, template in ordered.pairs(own) do list[#list + 1] = { name = name, template = template } end
  return list
end

-- ---- what is given

-- A list of tables with names, or raises.
local function check_maps(name, list, why)
  options.value(WHERE, name, list, { "table" })
  if not ordered.is_list(list) then fail("%s: %s must be a list, got a table with names", WHERE, name) end
  for i = 1, #list do
    if type(list[i]) == "function" and name == "tools" then
      fail("%s: tools[%d] is a function; Lua functions cannot be turned into a JSON schema: give a table " ..
        "such as { type = 'function', ['function'] = { name = .., description = .., parameters = .. } }",
        WHERE, i)
    end
    if type(list[i]) ~= "table" or list[i][1] ~= nil then
      fail("%s: %s[%d] must be a table with names%s, got %s", WHERE, name, i, why or "", show(list[i]))
    end
  end
end

local function check(messages, o)
  check_maps("messages", messages, " (one conversation at a time)")
  if #messages == 0 then fail("%s: the conversation is empty", WHERE) end
  if o.tools then check_maps("tools", o.tools) end
  if o.documents then check_maps("documents", o.documents) end
  if o.continue_final_message and o.add_generation_prompt then
    fail("%s: continue_final_message goes on with the last message, " ..
      "add_generation_prompt begins a new one; give one of them", WHERE)
  end
  if o.return_assistant_tokens_mask and not (o.return_dict and o.tokenize) then
    fail("%s: return_assistant_tokens_mask needs return_dict = true and tokenize = true", WHERE)
  end
  if o.return_assistant_tokens_mask and o.continue_final_message then
    fail("%s: return_assistant_tokens_mask and continue_final_message do not go together", WHERE)
  end
end

local function copy_of(map)
  local copy = ordered.is_ordered(map) and ordered.new() or {}
  for key, value in ordered.pairs(map) do copy[key] = value end
  return copy
end

-- Names of a message's reasoning; templates read the first one, GPT-OSS's the second one.
local REASONING = { "reasoning_content", "thinking", "reasoning" }

-- Messages with their reasoning under the names that templates read.
local function with_reasoning(messages)
  local list = {}
  for i, message in ipairs(messages) do
    local reasoning
    for _, name in ipairs(REASONING) do
      if reasoning == nil then reasoning = message[name] end
    end
    list[i] = message
    if reasoning ~= nil then
      list[i] = copy_of(message)
      list[i].reasoning_content = reasoning
      if message.thinking == nil then list[i].thinking = reasoning end
    end
  end
  return list
end

-- ---- going on with the last message

local TAG = "CONTINUE_FINAL_MESSAGE_TAG "

-- The last text block of a message's content, which is a list; returns the changed list and it.
local function tagged_block(content)
  local list = {}
  for i, block in ipairs(content) do list[i] = block end
  for i = #list, 1, -1 do
    local text = type(list[i]) == "table" and list[i].text
    if type(text) == "string" then
      list[i] = copy_of(list[i])
      list[i].text = text .. TAG
      return list, text
    end
  end
  fail("%s: continue_final_message: the last message has no text to go on with", WHERE)
end

-- The fields that hold what is gone on with: the reasoning stands under several names.
local function fields_of(message, field)
  local fields = {}
  for _, name in ipairs(REASONING) do
    if message[name] == message[field] then fields[#fields + 1] = name end
  end
  for _, name in ipairs(REASONING) do
    if name == field then return fields end
  end
  return { field }
end

-- Puts a mark behind the last message; returns its text.
local function mark_final(messages, template, field)
  local last = copy_of(messages[#messages])
  messages[#messages] = last
  local content = last[field]
  if content == nil then
    fail("%s: continue_final_message: the last message has no '%s' to go on with", WHERE, field)
  end
  local fields, read = fields_of(last, field), false
  for _, name in ipairs(fields) do read = read or template:find(name, 1, true) ~= nil end
  if not read then fail("%s: continue_final_message: the template does not read '%s'", WHERE, field) end
  if type(content) == "table" then
    last[field], content = tagged_block(content)
    return content
  end
  if type(content) ~= "string" then
    fail("%s: continue_final_message: '%s' of the last message must be a text, got %s", WHERE, field,
      show(content))
  end
  for _, name in ipairs(fields) do last[name] = content .. TAG end
  return content
end

local function without_end(text) return text:match "^.*%S" or "" end
local function trimmed(text) return (without_end(text):gsub("^%s+", "", 1)) end

-- The text up to the mark, and without the blanks that the template took from behind the message.
local function cut_at_mark(text, content)
  local mark, at = trimmed(TAG), nil
  local from = text:find(mark, 1, true)
  while from do
    at, from = from, text:find(mark, from + 1, true)
  end
  if not at or not text:find(trimmed(content), 1, true) then
    fail("%s: continue_final_message: the last message is not in what the template writes", WHERE)
  end
  local kept = text:sub(at, at + #TAG - 1) == TAG
  text = text:sub(1, at - 1)
  return kept and text or without_end(text)
end

-- ---- tokens of the assistant

-- 1 for each token that a span touches, else 0. Tokens and spans are in order.
local function mask_of(offsets, spans)
  local mask, at = {}, 1
  for i, offset in ipairs(offsets) do
    while spans[at] and offset[1] >= spans[at][2] do at = at + 1 end
    mask[i] = spans[at] and offset[2] > spans[at][1] and 1 or 0
  end
  return mask
end

-- What the tokenizer gives for the text, with the mask of the assistant's tokens.
local function encoded(self, text, spans, o)
  local wanted = o.return_assistant_tokens_mask
  local row = self(text, { add_special_tokens = false, return_offsets_mapping = wanted })
  if wanted then
    row.assistant_masks = mask_of(row.offset_mapping, spans)
    row.offset_mapping = nil
  end
  if not o.return_tensors then return row end
  return padding.join({ row }, #row.input_ids, 0, false)
end

--- Writes a conversation as the model was trained to see it, by the template of its folder.
--- Templates are Jinja; docs/tokenizers.md lists what is understood, and the rest raises with its
--- line. No template changes what it is given.
---@param messages { role: string, content: string|table[] }[]
---@param opts { add_generation_prompt: boolean?, continue_final_message: boolean|string|nil, tools:
---  table[]?, documents: table[]?, tokenize: boolean?, return_tensors: boolean|"pt"|nil,
---  return_dict: boolean?, return_assistant_tokens_mask: boolean?, chat_template: string?,
---  variables: table? }? continue_final_message: the text ends where the last message does; a text
---  names its field, default "content"; tools: JSON schemas of functions; tokenize: false returns
---  the text; return_dict: all that the tokenizer gives, not the ids alone;
---  return_assistant_tokens_mask: assistant_masks there, 1 for the tokens of the template's
---  `generation` blocks; chat_template: Jinja, or the name of one of the tokenizer's; variables:
---  more names for the template
---@return integer[]|accelerate.Tensor|string|table
function Tokenizer:apply_chat_template(messages, opts)
  local o = options.check(WHERE, opts, CHAT)
  local template = self:get_chat_template(o.chat_template, o.tools)
  check(messages, o)
  if o.return_assistant_tokens_mask and not template:find "{%%%-?%s*generation%s*%-?%%}" then
    notice.main_once("%s: the template has no {%% generation %%} block: assistant_masks are 0", WHERE)
  end
  messages = with_reasoning(messages)
  local field = o.continue_final_message
  local final = field and mark_final(messages, template, type(field) == "string" and field or "content")
  local variables = { messages = messages, tools = o.tools, documents = o.documents,
    add_generation_prompt = o.add_generation_prompt }
  for role, token in pairs(self._roles) do variables[role] = token end
  for name, value in pairs(o.variables or {}) do variables[name] = value end
  local text, spans = chat.render(template, variables, WHERE)
  if final then text = cut_at_mark(text, final) end
  if not o.tokenize then return text end
  if o.return_dict then return encoded(self, text, spans, o) end
  return self:encode(text, { add_special_tokens = false, return_tensors = o.return_tensors })
end

return Tokenizer
