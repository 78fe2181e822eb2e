"""advanced_geometry of reasoning-gym 0.1.25: its tolerance never applies to incircles, so 2.4250 is not 2.425."""

import reasoning_gym

data = reasoning_gym.create_dataset("advanced_geometry", seed=0, size=50)
rows = [row for row in data if row["metadata"]["task_type"] == "incircle_radius"]
assert rows
assert all(data.score_answer(f"{row['answer']}0", row) < 1 for row in rows)
