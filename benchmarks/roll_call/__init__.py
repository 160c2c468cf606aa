"""Credit over the number of agents: training runs of the environment `roll_call`, and a simulation that predicts them."""
