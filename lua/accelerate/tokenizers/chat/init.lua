--- Chat templates: Jinja as Transformers sets it up, rendered to text.
---
--- Everything of Jinja's language is understood but what needs other templates (include, import,
--- extends, block) and autoescape; what is not raises with its name and line. Blanks around blocks
--- go as Transformers has it: trim_blocks and lstrip_blocks are on.
---
--- lexer.lua cuts a template into words, parser.lua and expressions.lua make a tree of them,
--- runner.lua and evaluate.lua run it over the values of values.lua. run.lua counts what a
--- rendering uses up.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local parser = require "accelerate.tokenizers.chat.parser"
local run = require "accelerate.tokenizers.chat.run"
local runner = require "accelerate.tokenizers.chat.runner"
local variables_of = require "accelerate.tokenizers.chat.variables"

local M = {}

-- The template that was parsed last: scripts render one over many conversations.
local parsed_text, parsed_nodes

local function parse(template)
  if parsed_text ~= template then
    parsed_nodes = parser.parse((core._utf8_repair(template)))
    parsed_text = template
  end
  return parsed_nodes
end

-- Calls fn; what it fails with gets the template's line.
local function guarded(fn)
  run.begin()
  local ok, text, spans = pcall(fn)
  runner.finish()
  if ok then return text, spans end
  if type(text) == "string" and text:find("stack overflow", 1, true) then
    text = { line = run.line, message = "nested too deep" }
  end
  if type(text) ~= "table" or not text.message then error(text, 0) end
  options.fail("chat template, line %d: %s", text.line or run.line, text.message)
end

--- Returns the text that a template makes of variables, which it does not change, and the spans
--- {from, to} of its `generation` blocks in bytes, from 0. Raises for what it does not understand.
---@param template string
---@param variables table<string, any> texts, numbers, booleans and tables of them
---@param where string? for messages about variables
---@return string text
---@return integer[][] spans
function M.render(template, variables, where)
  return guarded(function()
    return runner.run(parse(template), variables_of.all(where or "chat template", variables))
  end)
end

return M
