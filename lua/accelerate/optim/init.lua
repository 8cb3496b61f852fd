--- accelerate.optim: optimizers and learning rate schedules. `local optim = require "accelerate.optim"`.

---@class accelerate.optim
return {
  Optimizer = require "accelerate.optim.optimizer",
  SGD = require "accelerate.optim.sgd",
  Adam = require "accelerate.optim.adam",
  AdamW = require "accelerate.optim.adamw",
  lr_scheduler = require "accelerate.optim.lr_scheduler",
}
