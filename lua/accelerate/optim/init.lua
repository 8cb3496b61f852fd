--- accelerate.optim: optimizers and learning rate schedules. `local optim = require "accelerate.optim"`.

---@class accelerate.optim
return {
  Optimizer = require "accelerate.optim.optimizer",
  SGD = require "accelerate.optim.sgd",
  Adam = require "accelerate.optim.adam",
  AdamW = require "accelerate.optim.adamw",
  Adamax = require "accelerate.optim.adamax",
  NAdam = require "accelerate.optim.nadam",
  RAdam = require "accelerate.optim.radam",
  Adagrad = require "accelerate.optim.adagrad",
  RMSprop = require "accelerate.optim.rmsprop",
  Adafactor = require "accelerate.optim.adafactor",
  Lion = require "accelerate.optim.lion",
  LOMO = require "accelerate.optim.lomo",
  AdaLOMO = require "accelerate.optim.adalomo",
  lr_scheduler = require "accelerate.optim.lr_scheduler",
}
