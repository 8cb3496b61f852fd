--- accelerate.optim: optimizers and learning rate schedules. `local optim = require
--- "accelerate.optim"`. Each is loaded at its first use.
local properties = require "accelerate.utils.properties"

---@class accelerate.optim
return properties.lazy("accelerate.optim", {
  Optimizer = "accelerate.optim.optimizer",
  class = "accelerate.optim.custom:class",
  SGD = "accelerate.optim.sgd",
  Adam = "accelerate.optim.adam",
  AdamW = "accelerate.optim.adamw",
  Adamax = "accelerate.optim.adamax",
  NAdam = "accelerate.optim.nadam",
  RAdam = "accelerate.optim.radam",
  Adagrad = "accelerate.optim.adagrad",
  RMSprop = "accelerate.optim.rmsprop",
  SparseAdam = "accelerate.optim.sparse_adam",
  Adafactor = "accelerate.optim.adafactor",
  Adadelta = "accelerate.optim.adadelta",
  Rprop = "accelerate.optim.rprop",
  ASGD = "accelerate.optim.asgd",
  LBFGS = "accelerate.optim.lbfgs",
  Muon = "accelerate.optim.muon",
  SGDScheduleFree = "accelerate.optim.sgd_schedule_free",
  AdamWScheduleFree = "accelerate.optim.adamw_schedule_free",
  Lion = "accelerate.optim.lion",
  LOMO = "accelerate.optim.lomo",
  AdaLOMO = "accelerate.optim.adalomo",
  lr_scheduler = "accelerate.optim.lr_scheduler",
  swa_utils = "accelerate.optim.swa_utils",
})
