-- Written by module_prints.py with PyTorch 2.15.0+cu132.
return {
{ [[nn.Linear(20, 10)]], [[Linear(in_features=20, out_features=10, bias=True)]] },
{ [[nn.Linear(20, 10, { bias = false })]], [[Linear(in_features=20, out_features=10, bias=False)]] },
{ [[nn.ReLU()]], [[ReLU()]] },
{ [[nn.Tanh()]], [[Tanh()]] },
{ [[nn.Sigmoid()]], [[Sigmoid()]] },
{ [[nn.Identity()]], [[Identity()]] },
{ [[nn.Dropout(0.25)]], [[Dropout(p=0.25, inplace=False)]] },
{ [[nn.Sequential()]], [[Sequential()]] },
{ [[nn.ModuleList()]], [[ModuleList()]] },
{ [[nn.Sequential(nn.Linear(1, 2))]], [[Sequential(
  (0): Linear(in_features=1, out_features=2, bias=True)
)]] },
{ [[nn.RNN(3, 4)]], [[RNN(3, 4)]] },
{ [[nn.GRU(3, 4, { bias = false })]], [[GRU(3, 4, bias=False)]] },
{ [[nn.LSTM(3, 4, { proj_size = 2 })]], [[LSTM(3, 4, proj_size=2)]] },
{ [[nn.RNNCell(3, 4, { nonlinearity = 'relu' })]], [[RNNCell(3, 4, nonlinearity=relu)]] },
{ [[nn.GRUCell(3, 4)]], [[GRUCell(3, 4)]] },
{ [[nn.LSTMCell(3, 4, { bias = false })]], [[LSTMCell(3, 4, bias=False)]] },
{ [[nn.Bilinear(2, 3, 4)]], [[Bilinear(in1_features=2, in2_features=3, out_features=4, bias=True)]] },
{ [[nn.CosineSimilarity()]], [[CosineSimilarity()]] },
{ [[nn.PairwiseDistance()]], [[PairwiseDistance()]] },
{ [[Net()]], [[Net(
  one
  two
  (body): Sequential(
    (0): Linear(in_features=2, out_features=3, bias=True)
    (1): ReLU()
    (2): Dropout(p=0.25, inplace=False)
  )
  (heads): ModuleDict(
    (a): Linear(in_features=3, out_features=4, bias=False)
    (b): Identity()
  )
  (blocks): ModuleList(
    (0-2): 3 x Sequential(
      (0): Linear(in_features=4, out_features=4, bias=True)
      (1): Tanh()
    )
    (3): Linear(in_features=4, out_features=4, bias=True)
    (4): Linear(in_features=4, out_features=5, bias=True)
  )
  (rnn): LSTM(4, 5, num_layers=2, batch_first=True, dropout=0.5, bidirectional=True)
)]] },
}
