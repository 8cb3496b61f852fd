--- A module in float64 whose parameters, in order, follow a pattern that transformer.py writes too;
--- in evaluation mode.
return function(module)
  local core = require "accelerate.core"
  module:double():eval()
  for k, p in ipairs(module:parameters()) do
    local at = core.arange(p:numel())
    p.data:copy_((((at * 37 + 11 * k) % 101 - 50):double() / 120):view(p.shape))
  end
  return module
end
