//! Scores of a BertForSequenceClassification for the inputs of a card: a small engine to seed bugs in.
//! ./engine MODEL CARD SCORES [BUG]. MODEL is a folder that save_pretrained wrote in float32.
use std::{collections::HashMap, convert::TryInto, env, f32::consts::PI, fs};
type Row = Vec<f32>;
type Rows = Vec<Row>;

/// Reads JSON that is known to be right; escapes in texts, which this engine doesn't need, stay as they are.
enum Json { Word, Number(f64), Text(String), List(Vec<Json>), Object(HashMap<String, Json>) }
impl Json {
    fn parse(text: &[u8], at: &mut usize) -> Json {
        let skip = |at: &mut usize| while b" \t\r\n,:".contains(&text[*at]) { *at += 1 };
        skip(at);
        let (first, start) = (text[*at], *at);
        *at += 1;
        match first {
            b'"' => {
                while text[*at] != b'"' { *at += if text[*at] == b'\\' { 2 } else { 1 } }
                *at += 1;
                Json::Text(String::from_utf8_lossy(&text[start + 1..*at - 1]).into())
            }
            b'[' | b'{' => {
                let mut items = vec![];
                loop {
                    skip(at);
                    if b"]}".contains(&text[*at]) { break }
                    items.push(Json::parse(text, at));
                }
                *at += 1;
                if first == b'[' { return Json::List(items) }
                let (mut items, mut found) = (items.into_iter(), HashMap::new());
                while let (Some(Json::Text(key)), Some(value)) = (items.next(), items.next()) {
                    found.insert(key, value);
                }
                Json::Object(found)
            }
            _ => {
                while text.get(*at).is_some_and(|sign| !b" \t\r\n,]}".contains(sign)) { *at += 1 }
                std::str::from_utf8(&text[start..*at]).unwrap().parse().map_or(Json::Word, Json::Number)
            }
        }
    }
    fn object(&self) -> &HashMap<String, Json> { if let Json::Object(all) = self { all } else { panic!("no object") } }
    fn list(&self) -> &[Json] { if let Json::List(all) = self { all } else { panic!("no list") } }
    fn text(&self) -> &str { if let Json::Text(text) = self { text } else { panic!("no text") } }
    fn at(&self, name: &str) -> &Json { &self.object()[name] }
    fn number(&self) -> f64 { if let Json::Number(value) = self { *value } else { panic!("no number") } }
    fn numbers(&self) -> Vec<usize> { self.list().iter().map(|one| one.number() as usize).collect() }
}
fn read_json(path: &str) -> Json { Json::parse(&fs::read(path).expect(path), &mut 0) }

fn read_weights(path: &str) -> HashMap<String, Rows> {
    let data = fs::read(path).expect(path);
    let start = 8 + u64::from_le_bytes(data[..8].try_into().unwrap()) as usize;
    let header = Json::parse(&data[8..start], &mut 0);
    header.object().iter().filter(|entry| entry.0 != "__metadata__").map(|(name, entry)| {
        assert_eq!(entry.at("dtype").text(), "F32", "{name}");
        let (places, width) = (entry.at("data_offsets").numbers(), *entry.at("shape").numbers().last().unwrap());
        let bytes = data[start + places[0]..start + places[1]].chunks_exact(4);
        let values: Row = bytes.map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        (name.clone(), values.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }).collect()
}

fn dot(one: &[f32], other: &[f32]) -> f32 { one.iter().zip(other).map(|(a, b)| a * b).sum() }
fn added(one: &[f32], other: &[f32]) -> Row { one.iter().zip(other).map(|(a, b)| a + b).collect() }
fn added_rows(one: &Rows, other: &Rows) -> Rows { one.iter().zip(other).map(|(a, b)| added(a, b)).collect() }
fn softmax(row: &[f32]) -> Row {
    let top = row.iter().copied().fold(f32::MIN, f32::max);
    let powers: Row = row.iter().map(|value| (value - top).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}
/// The series of Abramowitz and Stegun, 7.1.6: all its terms have one sign.
fn erf(value: f32) -> f32 {
    if value.abs() > 6.0 { return value.signum() }
    let value = f64::from(value);
    let (mut term, mut sum, mut n) = (value, value, 1.0);
    while term.abs() > 1e-17 * sum.abs() { term *= 2.0 * value * value / (2.0 * n + 1.0); sum += term; n += 1.0 }
    (2.0 / std::f64::consts::PI.sqrt() * (-value * value).exp() * sum) as f32
}

/// A model, and the bug that it has; "" for none.
struct Engine { config: Json, weights: HashMap<String, Rows>, bug: String }
impl Engine {
    fn setting(&self, name: &str) -> f64 { self.config.at(name).number() }
    fn linear(&self, name: &str, rows: &Rows) -> Rows {
        let (weight, bias) = (&self.weights[&format!("{name}.weight")], &self.weights[&format!("{name}.bias")][0]);
        rows.iter().map(|row| weight.iter().zip(bias).map(|(line, bias)| dot(line, row) + bias).collect()).collect()
    }
    fn norm(&self, name: &str, rows: &Rows) -> Rows {
        let (weight, bias) = (&self.weights[&format!("{name}.weight")][0], &self.weights[&format!("{name}.bias")][0]);
        rows.iter().map(|row| {
            let mean = row.iter().sum::<f32>() / row.len() as f32;
            let centered: Row = row.iter().map(|value| value - mean).collect();
            let variance = dot(&centered, &centered) / row.len() as f32;
            let deviation = (variance + self.setting("layer_norm_eps") as f32).sqrt();
            (0..row.len()).map(|at| centered[at] / deviation * weight[at] + bias[at]).collect()
        }).collect()
    }
    fn gelu(&self, value: f32) -> f32 {
        match self.bug.as_str() {
            "tanh GELU" => value / 2.0 * (1.0 + ((2.0 / PI).sqrt() * (value + 0.044715 * value.powi(3))).tanh()),
            "sigmoid GELU" => value / (1.0 + (-1.702 * value).exp()),
            _ => value / 2.0 * (1.0 + erf(value / 2f32.sqrt())),
        }
    }
    fn attend(&self, name: &str, hidden: &Rows, mask: &[usize]) -> Rows {
        let made = |kind| self.linear(&format!("{name}.self.{kind}"), hidden);
        let [query, key, value] = ["query", "key", "value"].map(made);
        let width = hidden[0].len() / self.setting("num_attention_heads") as usize;
        let attend_once = |row: &Row, from: usize| -> Row {
            let part = from..from + width;
            let logits: Row = key.iter().zip(mask).map(|(other, kept)| {
                if *kept == 0 && self.bug != "mask ignored" { return -1e30 }
                dot(&other[part.clone()], &row[part.clone()]) / (width as f32).sqrt()
            }).collect();
            let shares = softmax(&logits);
            part.map(|to| value.iter().zip(&shares).map(|(other, share)| other[to] * share).sum()).collect()
        };
        let attend_all = |row| (0..hidden[0].len()).step_by(width).flat_map(|from| attend_once(row, from)).collect();
        query.iter().map(attend_all).collect()
    }
    fn encode(&self, ids: &[usize], mask: &[usize], types: &[usize]) -> Rows {
        let table = |kind: &str| &self.weights[&format!("bert.embeddings.{kind}_embeddings.weight")];
        let (words, positions, segments) = (table("word"), table("position"), table("token_type"));
        let segment = |at: usize| &segments[if self.bug == "segments ignored" { 0 } else { types[at] }];
        let embedded = (0..ids.len()).map(|at| added(&added(&words[ids[at]], &positions[at]), segment(at))).collect();
        let mut hidden = self.norm("bert.embeddings.LayerNorm", &embedded);
        for own in (0..self.setting("num_hidden_layers") as usize).map(|layer| format!("bert.encoder.layer.{layer}")) {
            let attended = self.attend(&format!("{own}.attention"), &hidden, mask);
            let mixed = added_rows(&hidden, &self.linear(&format!("{own}.attention.output.dense"), &attended));
            hidden = self.norm(&format!("{own}.attention.output.LayerNorm"), &mixed);
            let inner = self.linear(&format!("{own}.intermediate.dense"), &hidden);
            let inner = inner.iter().map(|row| row.iter().map(|value| self.gelu(*value)).collect()).collect();
            let mixed = added_rows(&hidden, &self.linear(&format!("{own}.output.dense"), &inner));
            hidden = self.norm(&format!("{own}.output.LayerNorm"), &mixed);
        }
        hidden
    }
    fn score(&self, given: &Json) -> Row {
        let [ids, mask, types] = ["input_ids", "attention_mask", "token_type_ids"].map(|name| given.at(name).numbers());
        let hidden = self.encode(&ids, &mask, &types);
        let read: Vec<&Row> = hidden.iter().zip(&mask).filter(|one| *one.1 > 0).map(|one| one.0).collect();
        let mut pooled = match self.bug.as_str() {
            "last token" => read[read.len() - 1].clone(),
            "mean of the tokens" => {
                let sum = read.iter().fold(vec![0.0; hidden[0].len()], |all, row| added(&all, row));
                sum.iter().map(|value| value / read.len() as f32).collect()
            }
            _ => hidden[0].clone(),
        };
        if self.bug != "no pooler" { pooled = self.linear("bert.pooler.dense", &vec![pooled]).remove(0) }
        let has_tanh = self.bug != "no pooler" && self.bug != "no tanh";
        if has_tanh { pooled = pooled.iter().map(|value| value.tanh()).collect() }
        let mut scores = softmax(&self.linear("classifier", &vec![pooled])[0]);
        if self.bug == "labels in another order" { scores.reverse() }
        scores
    }
}

fn main() {
    let given: Vec<String> = env::args().skip(1).collect();
    let (folder, card) = (&given[0], read_json(&given[1]));
    let weights = read_weights(&format!("{folder}/model.safetensors"));
    let config = read_json(&format!("{folder}/config.json"));
    let engine = Engine { config, weights, bug: given.get(3).cloned().unwrap_or_default() };
    assert_eq!(engine.config.at("hidden_act").text(), "gelu");
    let rows: Vec<Row> = card.at("inputs").list().iter().map(|one| engine.score(one)).collect();
    let text = format!(r#"{{"engine": "tiny in Rust", "dtype": "float32", "scores": {rows:?}}}"#);
    fs::write(&given[2], text).expect("no scores were written");
}
