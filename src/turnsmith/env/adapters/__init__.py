"""Tasks and environments that come in another shape than a class with `reset` and `step`.

- `question_answer`: rows with a question and an answer, played in one turn
- `scorers`: calls a scoring function with what the names of its parameters ask for: ours, TRL's or verl's
- `batch_rewards`: finds out whether one looks at its batch
- `answers`: the scoring functions that ship with turnsmith; `final_answers`: what of a response they judge
- `scoring_process`, `scoring_worker`: processes that can be killed, for regular expressions, JSON schemas, mathematics;
  `linear_patterns`, `json_schemas`: what these need
- `code_tests`: the reward for code that passes tests
- `gymnasium`, `spaces`: Gymnasium's environments, in words
- `openenv`: environments behind an OpenEnv server; `openenv_tools`: what its MCP tools look like on the wire
- `pettingzoo`: the games of PettingZoo in turns, with other players in the other seats
- `reasoning_gym`: the tasks of reasoning-gym
- `textarena`: the games of TextArena

An adapter that needs a package imports it when an environment is made.
"""
