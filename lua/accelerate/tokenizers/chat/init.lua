--- Chat templates: the part of Jinja that they use, rendered to text.
---
--- Understood are texts, {{ expressions }}, {# comments #}, if, for (with `loop`, break and
--- continue) and set; what else stands in a template raises with its name and line. Blanks around
--- blocks go as Transformers has it: trim_blocks and lstrip_blocks are on.
local options = require "accelerate.utils.options"
local parser = require "accelerate.tokenizers.chat.parser"
local runner = require "accelerate.tokenizers.chat.runner"

local M = {}

--- Returns the text that a template makes of variables. Raises for what it does not understand.
---@param template string
---@param variables table<string, any>
---@return string
function M.render(template, variables)
  local ok, result = pcall(function() return runner.run(parser.parse(template), variables) end)
  if ok then return result end
  if type(result) ~= "table" then error(result, 0) end
  options.fail("chat template, line %d: %s", result.line, result.message)
end

return M
