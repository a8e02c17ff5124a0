// What the server answers: see envsdk/viewer/_rows.py, episodes.py and tokens.py.

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
}

export interface Row {
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
  not_scored: string; // why; empty if it was
  steps: number;
  breaks: Record<string, number>;
  roles: string[];
  contexts: number;
  observed_tokens: number;
  sampled_tokens: number;
  images: number; // observed ones, as often as they were observed
  image_tokens: number; // part of observed_tokens
  policy_versions: number[];
  reply_errors: number;
  metrics: Record<string, number>;
  ended: string;
  duration_s: number | null;
}

export interface RowsAnswer {
  generation: number;
  start: number;
  rows: Row[];
  more: boolean;
  unread_bytes: number;
  is_complete: boolean | null;
}

/** A message in which a text was found. */
export interface Hit {
  context: string;
  message: number; // index
  step: number | null; // index
  role: string;
  part: string;
  before: string;
  found: string;
  after: string;
}

/** An episode that matches a filter, and where its texts were found first. */
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

export interface Call {
  name: string;
  arguments: unknown;
  id: string | null;
  error: string | null;
  result: number | null;
}

/** What is known of an image. */
export interface ImageFacts {
  media_type: string;
  width: number;
  height: number;
  file: string;
  tokens: number | null;
}

export type ContentPart = { text: string } | { image: string }; // an image by its hash

export interface Message {
  role: string;
  content: string;
  parts: ContentPart[] | null; // of a message with images
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

export type Range = [context: string, start: number, stop: number];

export interface Step {
  index: number; // from 0; people see `numberOf` it
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
  parts: { stop: number; temperature: number; policy_version: number | null }[];
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
  reward: number | null; // null if the episode was not scored
  not_scored: string;
  is_trainable: boolean;
  observed_tokens: number;
  sampled_tokens: number;
  origins: string[];
  final_break: Break | null;
  contexts: Context[];
  steps: Step[];
  links: Link[];
  samples: { index: number; context: string; segment_index: number; tokens: number; trained: number; steps: number[] }[];
  nodes: { number: number; context: string; start: number; stop: number; parent: number; step: number }[];
  images: Record<string, ImageFacts>; // by their hashes
}

export type Runs<T> = [position: number, value: T][];

export interface Tokens {
  context: string;
  ids: number[];
  has_texts: boolean;
  texts: Record<string, string>;
  bytes: Record<string, string>;
  controls: number[];
  logprobs: (number | null)[];
  reference_logprobs: (number | null)[] | null;
  advantages: (number | null)[] | null;
  steps: Runs<number>;
  sampled: Runs<boolean>;
  trained: Runs<number | null>;
  samples: Runs<number[]>;
  nodes: Runs<number>;
  dropped: Runs<number | null>;
  roles: Runs<string | null>;
  images: [start: number, stop: number, sha256: string][];
  problem: string | null;
}
