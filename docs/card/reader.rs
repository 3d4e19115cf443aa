//! Compares an engine's scores with a card, as reader.py does: rustc -O reader.rs && ./reader CARD SCORES [PRECISION]
use std::{env, fs, process::exit};
type Rows = Vec<Vec<f64>>;
enum Json { Null, Num(f64), Text(String), List(Vec<Json>), Object(Vec<(String, Json)>) }
impl Json {
    fn list(&self) -> Result<&[Json], String> { if let Json::List(all) = self { Ok(all) } else { Err("a list is missing".into()) } }
    fn at(&self, name: &str) -> Result<&Json, String> {
        if let Json::Object(all) = self { all.iter().find(|one| one.0 == name).map(|one| &one.1) } else { None }.ok_or(format!("{name} is missing"))
    }
    fn text(&self) -> String { if let Json::Text(text) = self { text.clone() } else { String::new() } }
    fn number(&self) -> Result<f64, String> { if let Json::Num(value) = self { Ok(*value) } else { Err("a number is missing".into()) } }
    fn row(&self) -> Result<Vec<f64>, String> { if let Json::Num(value) = self { Ok(vec![*value]) } else { self.list()?.iter().map(Json::number).collect() } }
    fn rows(&self) -> Result<Rows, String> { self.list()?.iter().map(Json::row).collect() }
}
struct Reader<'a> { text: &'a [u8], at: usize }
impl Reader<'_> {
    fn peek(&mut self) -> Result<u8, String> {
        self.at += self.text[self.at.min(self.text.len())..].iter().take_while(|one| one.is_ascii_whitespace()).count();
        self.text.get(self.at).copied().ok_or("not JSON: it ends too early".into())
    }
    fn many<T>(&mut self, end: u8, item: impl Fn(&mut Self) -> Result<T, String>) -> Result<Vec<T>, String> {
        let mut found = vec![];
        self.at += 1;
        while self.peek()? != end { if !found.is_empty() { if self.text[self.at] != b',' { return Err("not JSON: a comma is missing".into()) } self.at += 1 } found.push(item(self)?) }
        Ok({ self.at += 1; found })
    }
    fn text(&mut self) -> Result<String, String> {
        let start = self.peek().map(|_| { self.at += 1; self.at })?;
        while *self.text.get(self.at).ok_or("not JSON: a text has no end")? != b'"' { self.at += if self.text[self.at] == b'\\' { 2 } else { 1 } }
        self.at += 1; // escapes stay in the text: only names are read
        Ok(String::from_utf8_lossy(&self.text[start..self.at - 1]).into_owned())
    }
    fn value(&mut self) -> Result<Json, String> {
        Ok(match self.peek()? {
            b'"' => Json::Text(self.text()?),
            b'[' => Json::List(self.many(b']', Self::value)?),
            b'{' => Json::Object(self.many(b'}', |own| { let key = own.text()?; own.peek()?; own.at += 1; Ok((key, own.value()?)) })?),
            _ => {
                let rest = &self.text[self.at..];
                let word = String::from_utf8_lossy(rest.split(|one| b",]} \t\r\n".contains(one)).next().unwrap_or(rest));
                self.at += word.len();
                if matches!(&*word, "null" | "true" | "false") { Json::Null } else { Json::Num(word.parse().map_err(|_| format!("not JSON: {word}"))?) }
            }
        })
    }
}
fn softmax(row: &[f64]) -> Vec<f64> { row.iter().map(|value| 1.0 / row.iter().map(|other| (other - value).exp()).sum::<f64>()).collect() }
fn sigmoid(row: &[f64]) -> Vec<f64> { row.iter().map(|value| 1.0 / (1.0 + (-value).exp())).collect() }
const FUNCTIONS: [(&str, fn(&[f64]) -> Vec<f64>); 5] = [("none", <[f64]>::to_vec), ("softmax", softmax), ("sigmoid", sigmoid), ("softmax of softmax", |row| softmax(&softmax(row))), ("sigmoid of sigmoid", |row| sigmoid(&sigmoid(row)))];
fn gap(rows: &Rows, to: usize, given: &Rows, at: usize) -> f64 { rows.iter().zip(given).fold(0.0, |most, (row, one)| (one[at] - row[to]).abs().max(most)) }
fn off_by(rows: &Rows, order: &[usize], given: &Rows) -> f64 { order.iter().enumerate().fold(0.0, |most, (at, to)| gap(rows, *to, given, at).max(most)) }
fn explain(name: String, logits: &Rows, given: &Rows, tolerance: f64) -> Vec<String> {
    FUNCTIONS.iter().filter_map(|(function, apply)| {
        let (rows, plain): (Rows, Vec<usize>) = (logits.iter().map(|row| apply(row)).collect(), (0..given[0].len()).collect());
        let find = |at: &usize| plain.iter().copied().min_by(|a, b| gap(&rows, *a, given, *at).total_cmp(&gap(&rows, *b, given, *at))).unwrap();
        let nearest: Vec<usize> = plain.iter().map(find).collect();
        if off_by(&rows, &plain, given) <= tolerance { return Some(format!("{name}, then {function}")) }
        let is_order = plain.iter().all(|to| nearest.contains(to));
        (is_order && off_by(&rows, &nearest, given) <= tolerance).then(|| format!("{name}, then {function}, classes in the order {nearest:?}"))
    }).collect()
}
fn compare(card: &Json, file: &Json, precision: &str) -> Result<(i32, String), String> {
    if card.at("format")?.text() != "headscope-card" || card.at("version")?.number()? != 1.0 { return Ok((2, "not a card of version 1".into())) }
    let (kind, names) = (if file.at("logits").is_ok() { "logits" } else { "scores" }, |json: &Json| -> Result<Vec<String>, String> { Ok(json.at("labels")?.list()?.iter().map(Json::text).collect()) });
    if file.at("labels").is_ok() && names(file)? != names(card)? { return Ok((2, "other labels than the card's, or in another order: put the scores into the order of the card".into())) }
    let (inputs, width, rows) = (card.at("inputs")?.list()?, card.at("labels")?.list()?.len(), file.at(kind).unwrap_or(file).rows()?);
    if rows.len() != inputs.len() || rows.iter().any(|row| row.len() != width) { return Ok((2, format!("{} rows of {width} numbers were expected", inputs.len()))) }
    let limits: Vec<(String, f64)> = card.at("tolerances")?.list()?.iter().filter_map(|item| Some((item.at("precision").ok()?.text(), item.at(kind).ok()?.number().ok()?))).collect();
    let Some((_, limit)) = limits.iter().find(|one| one.0 == precision) else { return Ok((2, format!("{kind} were not measured in {precision}"))) };
    if !rows.iter().flatten().all(|value| value.is_finite()) { return Ok((1, "numbers that are not finite".into())) }
    let (ids, mut places, mut others) = (file.at("input_ids").ok().map(Json::rows).transpose()?, vec![], vec![]);
    for (at, item) in inputs.iter().enumerate() {
        let (padded, mask) = (item.at("input_ids")?.row()?, item.at("attention_mask")?.row()?);
        let tokens: Vec<f64> = padded.iter().zip(mask).filter(|one| one.1 != 0.0).map(|one| *one.0).collect();
        let is_own = ids.as_ref().is_none_or(|all| all.get(at).is_some_and(|own| *own == tokens || *own == padded));
        (if is_own { &mut places } else { &mut others }).push(at);
    }
    let tokenizer = if others.is_empty() { String::new() } else { format!("the tokenizer differs on inputs {others:?}; ") };
    let (all, only) = (rows.clone(), |rows: Rows| -> Rows { places.iter().map(|at| rows[*at].clone()).collect() });
    let (given, expected, plain): (Rows, Rows, Vec<usize>) = (only(rows), only(card.at(kind)?.rows()?), (0..width).collect());
    let span = |to: usize| expected.iter().flat_map(|row| expected.iter().map(move |other| row[to] - other[to])).fold(0.0, f64::max);
    let off = off_by(&expected, &plain, &given);
    if places.is_empty() { return Ok((1, format!("{tokenizer}the head was not compared"))) }
    if plain.iter().all(|to| span(*to) < 2.0 * limit) { return Ok((3, format!("{tokenizer}the expected scores hardly differ, so equal ones show nothing"))) }
    if off <= *limit { return Ok(((off_by(&card.at(kind)?.rows()?, &plain, &all) > *limit) as i32, format!("{tokenizer}the same {kind} within {precision} (off by {off:.2e})"))) }
    let mut found = explain("as it is".into(), &only(card.at("logits")?.rows()?), &given, *limit);
    for item in card.at("alternatives")?.list()? { found.extend(explain(item.at("name")?.text(), &only(item.at("logits")?.rows()?), &given, *limit)) }
    let cause = match found.len() { 1 => &found[0], 0 => "cause not in the card", _ => "several causes fit" };
    let near = limits.iter().find(|one| off <= one.1).map_or(String::new(), |one| format!("; within the rounding of {}", one.0));
    Ok((1, format!("{tokenizer}other {kind}, off by {off:.2e}: {cause}{near}")))
}
fn run(names: &[String]) -> Result<(i32, String), String> {
    let read = |at: usize| { let data = fs::read(names.get(at).ok_or("two files are needed")?).map_err(|err| err.to_string())?; let mut own = Reader { text: &data, at: 0 }; let found = own.value()?; if own.peek().is_ok() { Err("not JSON: more follows".to_string()) } else { Ok(found) } };
    compare(&read(1)?, &read(2)?, names.get(3).map_or("float32", String::as_str))
}
fn main() {
    let (code, sentence) = run(&env::args().collect::<Vec<_>>()).unwrap_or_else(|err| (2, format!("unusable: {err}")));
    exit({ println!("{}: {sentence}", ["PASS", "FAIL", "UNUSABLE", "NOT DETERMINED"][code as usize]); code })
}
