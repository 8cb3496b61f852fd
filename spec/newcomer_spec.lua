-- Programs as someone writes them who knows PyTorch and Accelerate and starts here. They learn, and
-- editors (spec/meta_spec.lua) find no fault with them.
local host = require "spec.support.host"

-- A pattern of what the program prints, and what its number has to be.
local PROGRAMS = {
  images = { "best\t([%d.]+)", function(accuracy) return accuracy > 0.9 end },
  texts = { "epoch 4: valid loss [%d.]+, accuracy ([%d.]+)", function(accuracy) return accuracy > 0.9 end },
  gan = { "near\t([%d.]+)", function(distance) return distance < 0.5 end },
  gpt = { "epoch 8: perplexity ([%d.]+)", function(perplexity) return perplexity < 10 end },
  tabular = { "R2 ([%d.]+)", function(share) return share > 0.98 end },
}

describe("a newcomer's program", function()
  for name, check in pairs(PROGRAMS) do
    it(("of %s learns"):format(name), function()
      local status, out, err = host.run { "spec/support/programs/" .. name .. ".lua" }
      assert.equal(0, status, err)
      local number = tonumber(out:match(check[1]))
      assert(number and check[2](number), out .. err)
    end)
  end
end)
