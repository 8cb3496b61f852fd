local nn, tensor = require "accelerate.nn", require "accelerate.tensor"

local Net = nn.class("Net")
function Net:init(width)
  self.fc1 = nn.Linear(8, width)
  self.fc2 = nn.Linear(width, 2)
end
function Net:forward(x) return self.fc2(nn.functional.relu(self.fc1(x))) end

local net = Net(16)
print(net)
print(net(tensor.randn(5, 8)).shape[2])
for name, p in net:named_parameters() do print(name, p:numel()) end
