"""Credit over the number of agents: trainings on the environment `roll_call`, and a simulation that predicts them."""
