local run = require "accelerate.tokenizers.chat.run"

--- Returns a list in the order of `less`; entries that are equal keep their order.
---@param list any[]
---@param less fun(a: any, b: any): boolean
---@return any[]
return function(list, less)
  local from, to, n, width = {}, {}, #list, 1
  for i = 1, n do from[i] = list[i] end
  while width < n do
    for low = 1, n, 2 * width do
      local middle, high = math.min(low + width, n + 1), math.min(low + 2 * width, n + 1)
      local i, k = low, middle
      for at = low, high - 1 do
        local right = i >= middle or k < high and less(from[k], from[i])
        to[at] = right and from[k] or from[i]
        if right then k = k + 1 else i = i + 1 end
      end
      run.step(high - low)
    end
    from, to, width = to, from, width * 2
  end
  return from
end
