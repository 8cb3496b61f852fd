-- Calls of modules: how many arguments they take, and arguments by position.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local raises = require("spec.support.messages").raises

describe("a call of a layer", function()
  local x, labels = core.ones(2, 2), core.tensor({ 0, 1 }, { dtype = "int64" })

  it("takes no more arguments than its forward has", function()
    raises("MSELoss: 2 arguments expected, got 3", nn.MSELoss(), x, x, { reduction = "sum" })
    raises("Linear: 1 argument expected, got 3", nn.Linear(2, 2), x, 5, "junk")
    raises("CrossEntropyLoss: 2 arguments expected, got 3", nn.CrossEntropyLoss(), x, labels, 7)
    raises("Softmax: 1 argument expected, got 2", nn.Softmax(-1), x, 2)
    raises("GRU: 2 arguments expected, got 3", nn.GRU(2, 2), core.ones(3, 1, 2), core.ones(1, 1, 2), 1)
    raises("Sequential: 1 argument expected, got 2", nn.Sequential(nn.Linear(2, 2)), x, 3)
    raises("Linear: 1 argument expected, got 2", nn.LazyLinear(2), x, false)
    raises("BatchNorm1d: 2 arguments expected, got 3", nn.BatchNorm1d(2), x, x, x)
  end)

  it("counts them with hooks, as a method, and in classes that inherit forward", function()
    local layer = nn.Linear(2, 2)
    raises("Linear: 1 argument expected, got 2", layer.forward, layer, x, 3)
    layer:register_forward_hook(function() end)
    raises("Linear: 1 argument expected, got 2", layer, x, 3)
    local Heir = nn.class("Heir", nn.Linear)
    raises("Heir: 1 argument expected, got 2", Heir(2, 2), x, 1)
  end)

  it("does not count nils at the end", function()
    assert.same({ 2, 2 }, nn.Linear(2, 2)(x, nil, nil).shape)
    raises("Linear: 1 argument expected, got 3", nn.Linear(2, 2), x, nil, 3, nil)
  end)

  it("leaves forwards of scripts, and those that take any number, as they are", function()
    local Mine = nn.class("Mine", nn.Linear)
    function Mine:forward(a) return a end
    assert.equal(x, Mine(2, 2)(x, 1, 2))
    assert.equal(2, select("#", nn.Identity()(x, 1)))
    assert.same({ 2, 2 }, nn.BatchNorm1d(2)(x, x).shape)
    raises("Bare has no forward method", nn.class("Bare")(), x, 1)
    raises("ModuleList is a list and cannot be called", nn.ModuleList(), x, 1)
  end)
end)
