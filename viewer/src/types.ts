// scripts/viewer_types.py writes this file from envsdk/viewer/_json.py and _palette.py: do not edit it.

export type Range = [context: string, start: number, stop: number];

export const LEGEND: Record<string, string> = {
  "kept": "in the prompt already: a step neither renders nor sends it again",
  "observed": "new in a prompt: what the environment and the chat format added",
  "sampled": "sampled by the model",
  "trained": "underlined: sampled, and in the loss of a sample",
  "dropped": "hatched: a later break took it out of the prompt"
};

export interface Hit {
  context: string;
  message: number;
  step: number | null;
  role: string;
  part: string;
  before: string;
  found: string;
  after: string;
}

export interface EpisodeRow {
  line: number;
  status: string;
  damage: string;
  id: string;
  group_id: string | null;
  env: string;
  seed: number | null;
  task: string;
  stop_reason: string;
  error: string | null;
  error_kind: string | null;
  reward: number;
  rewards: Record<string, number>;
  is_scored: boolean;
  not_scored: string;
  steps: number;
  breaks: Record<string, number>;
  roles: string[];
  contexts: number;
  observed_tokens: number;
  sampled_tokens: number;
  images: number;
  image_tokens: number;
  policy_versions: number[];
  reply_errors: number;
  metrics: Record<string, number>;
  ended: string;
  duration_s: number | null;
}

export interface RunInfo {
  name: string;
  path: string;
  env: string;
  policy: string;
  model: string;
  renderer: string;
  history: string;
  created: string;
  episodes: number;
  is_complete: boolean | null;
  versions: Record<string, string>;
  configuration: Record<string, unknown>;
  segments: Record<string, unknown>[];
}

export interface RunsAnswer {
  follow: boolean;
  runs: RunInfo[];
}

export interface RowsAnswer {
  generation: number;
  start: number;
  rows: EpisodeRow[];
  more: boolean;
  unread_bytes: number;
  is_complete: boolean | null;
}

export interface Match {
  line: number;
  count: number;
  hits: Hit[];
}

export interface SearchAnswer {
  generation: number;
  searched: number;
  more: boolean;
  matches: Match[];
}

export interface ImageFacts {
  media_type: string;
  width: number;
  height: number;
  file: string;
  tokens: number | null;
}

export interface TextPart {
  text: string;
}

export interface ImagePart {
  image: string;
}

export interface Call {
  name: string;
  arguments: unknown;
  id: string | null;
  error: string | null;
  result: number | null;
}

export interface Message {
  role: string;
  content: string;
  parts: (TextPart | ImagePart)[] | null;
  reasoning: string | null;
  name: string | null;
  tool_call_id: string | null;
  errors: string[];
  open_block: string | null;
  calls: Call[];
  is_inherited: boolean;
  steps: number[];
  answers: [number, number] | null;
}

export interface Context {
  name: string;
  role: string;
  parent: string | null;
  base: string | null;
  inherited_tokens: number;
  tokens: number;
  reward: number | null;
  own_reward: number;
  stop_reason: string;
  error: string | null;
  task: unknown;
  is_trainable: boolean;
  tools: string[];
  messages: Message[];
}

export interface Break {
  kind: string;
  reason: string;
  context: string;
  base: string;
  kept: number;
  dropped: number;
  detail: string;
  observed_again: number;
}

export interface ReplyPart {
  stop: number;
  temperature: number;
  policy_version: number | null;
}

export interface Step {
  index: number;
  context: string;
  base: string;
  keep: number;
  extends: boolean;
  starts_segment: boolean;
  start: number;
  action_start: number;
  stop: number;
  prompt_tokens: number;
  observed: number;
  sampled: number;
  parts: ReplyPart[];
  finish_reason: string;
  reply: number | null;
  reward: number | null;
  rewards: Record<string, number>;
  metrics: Record<string, number>;
  is_copied: boolean;
  left: Record<string, number>;
  dropped: Range[];
  break: Break | null;
}

export interface Link {
  kind: "handoff" | "return";
  from: string;
  to: string;
  step: number;
}

export interface Sample {
  index: number;
  context: string;
  segment_index: number;
  tokens: number;
  trained: number;
  steps: number[];
}

export interface Node {
  number: number;
  context: string;
  start: number;
  stop: number;
  parent: number;
  step: number;
}

export interface Episode {
  id: string;
  env: string;
  seed: number | null;
  group_id: string | null;
  status: string;
  stop_reason: string;
  error: string | null;
  error_kind: string | null;
  task: unknown;
  config: Record<string, unknown>;
  limits: Record<string, unknown>;
  renderer: Record<string, unknown>;
  history: Record<string, unknown>;
  tokenizer: string;
  reward: number | null;
  not_scored: string;
  is_trainable: boolean;
  observed_tokens: number;
  sampled_tokens: number;
  origins: string[];
  final_break: Break | null;
  contexts: Context[];
  steps: Step[];
  links: Link[];
  samples: Sample[];
  nodes: Node[];
  images: Record<string, ImageFacts>;
}

export interface Tokens {
  context: string;
  ids: number[];
  has_texts: boolean;
  texts: Record<string, string>;
  bytes: Record<string, string>;
  controls: number[];
  logprobs: (number | null)[];
  reference_logprobs: (number | null)[] | null;
  teacher: string | null;
  advantages: (number | null)[] | null;
  steps: [number, number][];
  sampled: [number, boolean][];
  trained: ([number, number | null])[];
  samples: [number, number[]][];
  nodes: [number, number][];
  dropped: ([number, number | null])[];
  roles: ([number, string | null])[];
  images: [number, number, string][];
  problem?: string | null;
}

export interface Prompt {
  ranges: Range[];
}
