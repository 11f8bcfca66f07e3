"""A plan as overrides of verl's configuration (Hydra's grammar), in groups with the purpose of each.

Values may contain $HERE, the folder: launch.sh has them in double quotes. Checked against verl's own
configuration in tests/rl_training/test_verl.py.
"""

from dataclasses import dataclass

from kernelwright.rl_training.cluster.plan import ClusterPlan

LOOP = "kernelwright"  # the agent loop's name
_PAPERS = {
    "grpo": "GRPO, arXiv:2402.03300",
    "rloo": "RLOO, arXiv:2402.14740",
    "remax": "ReMax, arXiv:2310.10505; the agent loop subtracts the greedy reply's reward",
    "dapo": "DAPO, arXiv:2503.14476",
}


@dataclass(frozen=True)
class OverrideGroup:
    purpose: str
    overrides: tuple[str, ...]


def overrides_of(plan: ClusterPlan, held_out: bool) -> list[OverrideGroup]:
    """Return the overrides of a plan, in groups. `held_out`: there are tasks to validate on."""
    groups = [
        OverrideGroup("the data", _data(plan, held_out)),
        OverrideGroup("the policy and its inference engine", _model(plan)),
        OverrideGroup("the reward", _reward(plan)),
        OverrideGroup(_PAPERS[plan.algorithm], _algorithm(plan)),
        OverrideGroup(_TRAINERS[plan.trainer], _trainer(plan)),
        OverrideGroup("the run", _run(plan, held_out)),
    ]
    if plan.own_loop:
        groups.insert(3, OverrideGroup("turns", _loop(plan)))
    return groups


_TRAINERS = {
    "sync": "synchronous",
    "colocate_async": "rollouts are interrupted when weights change, and resumed: partial rollouts",
    "separate_async": "fully asynchronous: rollouts on separate GPUs, resumed when weights change",
}


def _data(plan: ClusterPlan, held_out: bool) -> tuple[str, ...]:
    return (
        "data.train_files='$HERE/train.parquet'",
        f"data.val_files='$HERE/{'test' if held_out else 'train'}.parquet'",
        f"data.train_batch_size={plan.tasks}",
        f"data.max_prompt_length={plan.prompt_tokens}",
        f"data.max_response_length={plan.response_tokens}",
        "data.filter_overlong_prompts=True",
        "data.truncation=error",
    )


def _model(plan: ClusterPlan) -> tuple[str, ...]:
    tokens = plan.prompt_tokens + plan.response_tokens
    return (
        f"actor_rollout_ref.model.path='{plan.model}'",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        f"actor_rollout_ref.rollout.name={plan.engine}",
        f"actor_rollout_ref.rollout.n={plan.group}",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        f"actor_rollout_ref.rollout.max_model_len={tokens}",
        f"actor_rollout_ref.rollout.max_num_batched_tokens={tokens}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={plan.tasks}",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={2 * tokens}",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "algorithm.use_kl_in_reward=False",
    )


def _reward(plan: ClusterPlan) -> tuple[str, ...]:
    found = (
        "reward.custom_reward_function.path='$HERE/reward.py'",
        "reward.custom_reward_function.name=compute_score",
        "+ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH='$PYTHONPATH'",
    )
    if plan.algorithm != "dapo" or plan.own_loop:
        return (*found, "reward.reward_manager.name=naive")
    buffer = plan.response_tokens // 5  # a fifth, as in the paper: 4096 of 20480
    return (
        *found,
        "reward.reward_manager.name=dapo",
        f"+reward.reward_kwargs.max_resp_len={plan.response_tokens}",
        "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
        f"+reward.reward_kwargs.overlong_buffer_cfg.len={buffer}",
        "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0",
        "+reward.reward_kwargs.overlong_buffer_cfg.log=False",
    )


def _loop(plan: ClusterPlan) -> tuple[str, ...]:
    return (
        "actor_rollout_ref.rollout.agent.agent_loop_config_path='$HERE/agent_loop.yaml'",
        f"actor_rollout_ref.rollout.agent.default_agent_loop={LOOP}",
    )


def _algorithm(plan: ClusterPlan) -> tuple[str, ...]:
    # verl's "grpo" takes the last turn's reward for all of them; its other estimators take each sample's own.
    grpo = "grpo" if plan.turns == 1 else "grpo_vectorized"
    if plan.algorithm == "remax":
        return (
            "algorithm.adv_estimator=kernelwright_remax",
            "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES=kernelwright.rl_training.cluster.estimators",
        )
    if plan.algorithm == "rloo":
        # verl's "rloo" pays a sample that is left alone in its group its whole reward; this one nothing.
        return ("algorithm.adv_estimator=rloo_vectorized",)
    if plan.algorithm == "grpo":
        return (f"algorithm.adv_estimator={grpo}", "algorithm.norm_adv_by_std_in_grpo=True")
    return (
        f"algorithm.adv_estimator={grpo}",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=reward",
        "actor_rollout_ref.actor.clip_ratio_low=0.2",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
        "actor_rollout_ref.actor.loss_agg_mode=token-mean",
    )


def _trainer(plan: ClusterPlan) -> tuple[str, ...]:
    mode = ("trainer.use_v1=True", f"trainer.v1.trainer_mode={plan.trainer}")
    if plan.trainer == "sync":
        # A group of which nothing is known is replaced; with one sample that is known it is learned from.
        return (*mode, "trainer.v1.sampler.sync_refill_failed_groups=True")
    found = (
        *mode,
        f"trainer.v1.sampler.max_off_policy_threshold={plan.lag + 1}",  # versions, the newest among them
        "trainer.v1.sampler.max_off_policy_strategy=drop",
        # Tokens of older weights count less: truncated importance sampling.
        "algorithm.rollout_correction.rollout_is=token",
        "algorithm.rollout_correction.rollout_is_threshold=2.0",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
    )
    if plan.trainer == "colocate_async":
        return found
    return (
        *found,
        "trainer.v1.separate_async.parameter_sync_step=1",
        "actor_rollout_ref.hybrid_engine=False",
        f"actor_rollout_ref.rollout.nnodes={plan.rollout_nodes or 1}",
        f"actor_rollout_ref.rollout.n_gpus_per_node={plan.gpus}",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    )


def _run(plan: ClusterPlan, held_out: bool) -> tuple[str, ...]:
    return (
        f"trainer.nnodes={plan.nodes}",
        f"trainer.n_gpus_per_node={plan.gpus}",
        f"trainer.total_training_steps={plan.steps}",
        f"trainer.total_epochs={plan.steps}",
        f"trainer.val_before_train={held_out}",
        f"trainer.test_freq={10 if held_out else -1}",
        "trainer.save_freq=10",
        "trainer.default_local_dir='$HERE/checkpoints'",
        "trainer.rollout_data_dir='$HERE/rollouts'",
        "trainer.logger=[console,tensorboard]",
        "trainer.project_name=kernelwright",
        f"trainer.experiment_name={plan.algorithm}",
        "hydra.run.dir='$HERE/hydra'",
    )
