--- accelerate.optim: optimizers and learning rate schedules. `local optim = require
--- "accelerate.optim"`. Each is loaded at its first use.
local properties = require "accelerate.utils.properties"

---@class accelerate.optim
return properties.lazy("accelerate.optim", {
  Optimizer = "accelerate.optim.optimizer",
  SGD = "accelerate.optim.sgd",
  Adam = "accelerate.optim.adam",
  AdamW = "accelerate.optim.adamw",
  Adamax = "accelerate.optim.adamax",
  NAdam = "accelerate.optim.nadam",
  RAdam = "accelerate.optim.radam",
  Adagrad = "accelerate.optim.adagrad",
  RMSprop = "accelerate.optim.rmsprop",
  Adafactor = "accelerate.optim.adafactor",
  Lion = "accelerate.optim.lion",
  LOMO = "accelerate.optim.lomo",
  AdaLOMO = "accelerate.optim.adalomo",
  lr_scheduler = "accelerate.optim.lr_scheduler",
  swa_utils = "accelerate.optim.swa_utils",
})
