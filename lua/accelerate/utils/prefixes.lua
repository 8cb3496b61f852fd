--- Prefixes of names that wrappers add: "module." by DistributedDataParallel, "_orig_mod." by
--- torch.compile.

local M = {}

--- Returns the prefix without which most of the names are wanted ones, or nil.
---@param names any[] none is wanted as it is; those that are no texts do not count
---@param wanted fun(name: string): any
---@return string?
function M.surplus(names, wanted)
  local counts, best = {}, nil
  for _, name in ipairs(names) do
    local at = type(name) == "string" and name:find(".", 1, true)
    while at and not wanted(name:sub(at + 1)) do at = name:find(".", at + 1, true) end
    if at then
      local prefix = name:sub(1, at)
      counts[prefix] = (counts[prefix] or 0) + 1
      if not best or counts[prefix] > counts[best] then best = prefix end
    end
  end
  return best and 2 * counts[best] > #names and best or nil
end

--- Returns what to do about a prefix, as a part of a sentence.
---@param prefix string
---@return string
function M.remedy(prefix)
  return ("the names begin with '%s': nn.utils.consume_prefix_in_state_dict_if_present(state_dict, " ..
    "'%s') takes it off"):format(prefix, prefix)
end

return M
